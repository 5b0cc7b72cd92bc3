"""Agreement is counted once a decision; a difference only when it stands."""

from __future__ import annotations

from engine.shadow.kinds.comparison import Comparison, NotJudged
from engine.shadow.ledger import AgreementLedger


def compared(ours: str, kubelets: str, *, subject: str = "p", settle: float = 20.0) -> Comparison:
    return Comparison("status", subject, ours, kubelets, "our reason", "its reason", settle)


def test_a_decision_that_both_stand_by_counts_once() -> None:
    ledger = AgreementLedger()
    for now in range(5):
        ledger.add([compared("a", "a")], now=now, wall=now)
    assert (ledger.agreed, ledger.differed) == (1, 0)
    ledger.add([compared("b", "b")], now=9, wall=9)
    assert ledger.agreed == 2


def test_a_difference_counts_when_it_has_settled() -> None:
    ledger = AgreementLedger()
    assert ledger.add([compared("a", "b")], now=0, wall=100) == []
    assert ledger.unsettled() == {"p"}
    assert ledger.add([compared("a", "b")], now=19, wall=119) == []
    (difference,) = ledger.add([compared("a", "b")], now=20, wall=120)
    assert (difference.first, difference.stands, ledger.differed) == (120, True, 1)
    ledger.add([compared("a", "a")], now=30, wall=130)
    assert not difference.stands
    assert (ledger.agreed, ledger.differed) == (1, 1)


def test_what_ends_before_it_settles_is_agreement() -> None:
    ledger = AgreementLedger()
    ledger.add([compared("a", "b")], now=0, wall=0)
    ledger.add([compared("a", "a")], now=10, wall=10)
    assert (ledger.agreed, ledger.differed) == (1, 0)


def test_time_in_which_the_node_was_not_seen_does_not_settle() -> None:
    ledger = AgreementLedger()
    ledger.add([compared("a", "b")], now=0, wall=0)
    ledger.interrupt()
    assert ledger.add([compared("a", "b")], now=100, wall=100) == []
    assert ledger.differed == 0


def test_a_difference_that_comes_back_is_the_same_one() -> None:
    ledger = AgreementLedger()
    for now in (0, 20, 40):
        ledger.add([compared("a", "b", settle=0)], now=now, wall=now)
        ledger.add([], now=now + 10, wall=now + 10)
    (difference,) = ledger.differences()
    assert (difference.times, difference.stands, difference.last) == (3, False, 50)


def test_differences_are_bounded_and_the_oldest_go() -> None:
    ledger = AgreementLedger(most=10)
    for number in range(25):
        ledger.add([compared("a", "b", subject=str(number), settle=0)], now=number, wall=number)
    assert [d.comparison.subject for d in ledger.differences()] == [str(n) for n in range(15, 25)]
    assert (ledger.dropped, ledger.differed) == (15, 25)


def test_what_cannot_be_judged_is_counted_once_by_its_reason() -> None:
    ledger = AgreementLedger()
    for now in range(3):
        ledger.add([NotJudged("status", "p", "is gone")], now=now, wall=now)
    assert ledger.tallies["status"].not_judged == {"is gone": 1}
