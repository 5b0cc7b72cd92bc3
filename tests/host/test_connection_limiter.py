"""Which idle connections are dropped for new ones."""

from __future__ import annotations

from engine.host.connection_limiter import ConnectionLimiter, ConnectionSlot


def test_the_longest_idle_connection_is_closed() -> None:
    gone: list[str] = []
    limiter = ConnectionLimiter(3)

    def enter(name: str) -> ConnectionSlot:
        slot = limiter.enter(lambda: gone.append(name))
        assert slot is not None
        return slot

    first, second, third = enter("first"), enter("second"), enter("third")
    first.set_idle()
    fourth = enter("fourth")
    assert gone == ["second"]
    third.work()
    first.work()
    assert limiter.at_work == 2
    enter("fifth")
    assert gone == ["second", "fourth"]
    assert third in limiter
    third.set_idle()
    enter("sixth")
    enter("seventh")
    assert gone == ["second", "fourth", "fifth", "third"]
    for slot in (second, fourth, third):  # a dropped peer has no slot to come back to
        slot.set_idle()
        slot.work()
        assert slot not in limiter
    assert limiter.at_work == 1


def test_busy_connections_are_not_dropped() -> None:
    limiter = ConnectionLimiter(2)
    slots = [limiter.enter(lambda: None), limiter.enter(lambda: None)]
    for slot in slots:
        assert slot is not None
        slot.work()
    assert limiter.enter(lambda: None) is None
    assert slots[0] is not None
    slots[0].release()
    slots[0].release()
    assert limiter.enter(lambda: None) is not None
