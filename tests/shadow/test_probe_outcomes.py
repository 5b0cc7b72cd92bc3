"""What follows from the outcomes that a kubelet counts of its probes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.cri.records import ContainerRecord
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.probes import MIXED, ProbeComparer, ProbeCounts, ProbeKey, probe_counts
from tests.shadow.observations import observed, pod, ran, record

PROBE: dict[str, Any] = {"exec": {"command": ["true"]}, "failureThreshold": 3, "successThreshold": 1}


class Container:
    """Represent a container with one probe, as a kubelet shows it."""

    def __init__(self, type: str, **fields: Any) -> None:
        self.type, self.comparer = type, ProbeComparer()
        self.probe = {**PROBE, **fields}
        self.counts = {"successful": 0, "failed": 0, "unknown": 0}

    def sees(
        self, successful: int = 0, failed: int = 0, unknown: int = 0, *, ready: bool = False,
        started: bool = True, runs: ContainerRecord | None = None,
    ) -> list[Finding]:  # fmt: skip
        """Return the findings after `successful`, `failed` and `unknown` more outcomes.

        `runs` is the newest container.
        """
        for name, more in (("successful", successful), ("failed", failed), ("unknown", unknown)):
            self.counts[name] += more
        newest = runs or ran(0)
        state = {"running": {}} if newest.running else {"terminated": {"exitCode": newest.exit_code}}
        status = {
            "name": "c", "image": "i", "imageID": "", "restartCount": newest.attempt, "state": state,
            "ready": ready, "started": started, "containerID": f"containerd://{newest.id}",
        }  # fmt: skip
        field = f"{self.type.lower()}Probe"
        one = pod(
            "p", {"containers": [{"name": "c", "image": "i", field: self.probe}]}, containerStatuses=[status]
        )
        seen = observed([one], [record(one, newest)])
        return list(self.comparer.compare(replace(seen, series=self._series(), probes_served=True)))

    def _series(self) -> dict[str, float]:
        labels = f'container="c",namespace="default",pod="p",pod_uid="uid-p",probe_type="{self.type}"'
        return {
            f'prober_probe_total{{{labels},result="{name}"}}': float(n) for name, n in self.counts.items()
        }


def sides(found: list[Finding]) -> list[tuple[str, str]]:
    return [(one.ours, one.kubelets) for one in found if isinstance(one, Comparison)]


def test_readiness_follows_the_thresholds() -> None:
    one = Container("Readiness")
    assert sides(one.sees(successful=2, ready=True)) == [("ready", "ready")]
    assert sides(one.sees(failed=2, ready=True)) == [("ready", "ready")]
    assert sides(one.sees(failed=1)) == [("not ready", "not ready")]
    assert sides(one.sees(ready=True)) == [("not ready", "ready")]
    (found,) = one.sees()
    assert isinstance(found, Comparison)
    # A kubelet under load shows an outcome as late as any other part of a status.
    assert found.settle == 60
    assert found.subject == "default/p/c readiness attempt 0"
    assert found.our_reason == "2 successes and 3 failures, thresholds 1 and 3"


def test_a_success_threshold_is_waited_for() -> None:
    one = Container("Readiness", successThreshold=3)
    assert sides(one.sees(failed=3)) == [("not ready", "not ready")]
    assert sides(one.sees(successful=2)) == [("not ready", "not ready")]
    assert sides(one.sees(successful=1)) == [("ready", "not ready")]


def test_outcomes_in_an_unknown_order_are_not_judged_until_enough_equal_ones_follow() -> None:
    one = Container("Readiness")
    one.sees(successful=1)
    (found,) = one.sees(successful=1, failed=1)
    assert isinstance(found, NotJudged)
    assert found.why == MIXED
    assert sides(one.sees(failed=2)) == []
    assert sides(one.sees(failed=1)) == [("not ready", "not ready")]
    assert one.sees(unknown=1)[0][2] == MIXED


def test_a_container_that_fails_its_liveness_probe_is_to_be_ended() -> None:
    one = Container("Liveness")
    assert sides(one.sees(successful=1)) == [("runs on", "runs on")]
    (found,) = one.sees(failed=3)
    assert isinstance(found, Comparison)
    assert (found.ours, found.kubelets, found.settle) == ("is ended", "runs on", 60)
    ended = ran(0, code=137)
    assert sides(one.sees(runs=ended)) == [("is ended", "is ended")]
    # A container that ends by itself says nothing about its probe.
    other = Container("Liveness")
    other.sees(successful=1)
    assert sides(other.sees(runs=ended)) == []


def test_the_last_failures_may_be_counted_when_another_container_runs() -> None:
    one = Container("Liveness")
    one.sees(failed=2)
    found = one.sees(failed=1, runs=ran(1))
    assert [each.subject for each in found] == ["default/p/c liveness attempt 0"]
    assert sides(found) == [("is ended", "is ended")]
    assert sides(one.sees(failed=2, runs=ran(1))) == []
    assert sides(one.sees(failed=1, runs=ran(1))) == [("is ended", "runs on")]


def test_a_startup_probe_ends_the_start() -> None:
    one = Container("Startup")
    assert sides(one.sees(failed=2, started=False)) == []
    assert sides(one.sees(successful=1, started=True)) == [("started", "started")]
    assert sides(one.sees(started=False)) == [("started", "not started")]
    other = Container("Startup")
    assert sides(other.sees(failed=3, started=False)) == [("is ended", "runs on")]


def test_readiness_before_the_end_of_the_start_is_not_judged() -> None:
    one = Container("Readiness")
    assert sides(one.sees(successful=1, ready=False, started=False)) == []


def test_a_kubelet_that_restarts_counts_from_zero() -> None:
    one = Container("Readiness")
    one.sees(failed=3)
    one.counts = dict.fromkeys(one.counts, 0)
    # The first one may be older than the observation before, or of another container.
    assert sides(one.sees(failed=1)) == []
    assert sides(one.sees(failed=2)) == []
    assert sides(one.sees(failed=1)) == [("not ready", "not ready")]


def test_without_the_series_nothing_is_compared() -> None:
    found = list(ProbeComparer().compare(observed([])))
    assert found == [NotJudged("probes", "node", "the kubelet serves no /metrics/probes")]


def test_counts_are_taken_from_the_labels() -> None:
    series = {
        'prober_probe_total{container="c",pod_uid="u",probe_type="Liveness",result="failed"}': 2.0,
        'prober_probe_total{container="c",pod_uid="u",probe_type="Liveness",result="successful"}': 5.0,
        "kubelet_evictions": 1.0,
    }
    assert probe_counts(series) == {ProbeKey("u", "c", "Liveness"): ProbeCounts(5, 2, 0)}
