"""Which pods end together, in which order and with how much time, as a kubelet decides it."""

from __future__ import annotations

import pytest

from engine.api.config import KubeletConfiguration, ShutdownGracePeriodByPodPriority
from engine.api.duration import Duration
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodSpec
from engine.shutdown.groups import Period, by_priority, grace_seconds, shutdown_periods, whole_time

CRITICAL = 2_000_000_000


def pod(name: str, priority: int | None, grace: int | None = None) -> Pod:
    spec = PodSpec(priority=priority, termination_grace_period_seconds=grace)
    return Pod(metadata=ObjectMeta(name=name), spec=spec)


def config(whole: float = 0, critical: float = 0, **fields: object) -> KubeletConfiguration:
    return KubeletConfiguration(
        shutdown_grace_period=Duration(whole),
        shutdown_grace_period_critical_pods=Duration(critical),
        **fields,  # type: ignore[arg-type]
    )


BY_PRIORITY = [
    ShutdownGracePeriodByPodPriority(priority=100, shutdown_grace_period_seconds=20),
    ShutdownGracePeriodByPodPriority(priority=0, shutdown_grace_period_seconds=10),
]


@pytest.mark.parametrize(
    ("configured", "periods"),
    [
        (config(), []),
        (config(30, 10), [Period(0, 20), Period(CRITICAL, 10)]),
        (config(30), [Period(0, 30), Period(CRITICAL, 0)]),
        (config(30, 10, feature_gates={"GracefulNodeShutdown": False}), []),
        (config(shutdown_grace_period_by_pod_priority=BY_PRIORITY), [Period(0, 10), Period(100, 20)]),
        (
            config(
                shutdown_grace_period_by_pod_priority=BY_PRIORITY,
                feature_gates={"GracefulNodeShutdownBasedOnPodPriority": False},
            ),
            [],
        ),
    ],
)
def test_periods_of_a_configuration(configured: KubeletConfiguration, periods: list[Period]):
    assert shutdown_periods(configured) == periods


def test_logind_is_to_wait_for_all_of_them():
    assert whole_time([Period(0, 20), Period(CRITICAL, 10)]) == 30


@pytest.mark.parametrize(
    ("priority", "of"),
    [(None, 0), (0, 0), (99, 0), (100, 100), (101, 100), (999, 100), (1000, 1000), (CRITICAL, 1000), (-5, 0)],
)
def test_a_pod_belongs_to_the_highest_period_not_above_it_or_the_lowest(priority: int | None, of: int):
    periods = [Period(0, 1), Period(100, 2), Period(1000, 3)]
    (group,) = by_priority(periods, [pod("p", priority)])
    assert group.period.priority == of


def test_groups_end_from_the_lowest_up_and_empty_ones_are_not_waited_for():
    periods = [Period(0, 10), Period(100, 20), Period(CRITICAL, 30)]
    groups = by_priority(periods, [pod("a", CRITICAL + 1000), pod("b", 0), pod("c", CRITICAL)])
    assert [(g.period.priority, [p.metadata.name for p in g.pods]) for g in groups] == [
        (0, ["b"]),
        (CRITICAL, ["a", "c"]),
    ]


@pytest.mark.parametrize(("own", "grace"), [(None, 20), (5, 5), (60, 20), (0, 0)])
def test_a_pod_has_its_own_grace_cut_to_its_groups(own: int | None, grace: int):
    assert grace_seconds(pod("p", 0, own), Period(0, 20)) == grace
