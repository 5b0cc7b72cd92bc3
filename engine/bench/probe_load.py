"""Choose the probes of the probing phase's pods: a mix of kinds at a rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from engine.api.errors import InvalidInput
from engine.bench import workload

KINDS = ("http", "tcp", "exec")
PROBES_PER_POD = 2
DEFAULT_MIX = {"http": 1, "tcp": 1}


@dataclass(frozen=True, slots=True)
class ProbeLoad:
    """Specify the load: `mix` is kinds with weights; `per_second` is the rate over all pods, None for two a
    second per pod.

    Raise `InvalidInput` for an unknown kind or more than two probes a second per pod.
    """

    mix: dict[str, int] = field(default_factory=DEFAULT_MIX.copy)
    per_second: float | None = None

    def __post_init__(self) -> None:
        if not self.mix or not set(self.mix) <= set(KINDS) or min(self.mix.values()) < 1:
            raise InvalidInput(
                f"expected weights of {', '.join(KINDS)}, as http=9,tcp=10,exec=1", subject="probe mix"
            )
        if self.per_second is not None and self.per_second <= 0:
            raise InvalidInput("expected more than 0", subject="probes per second")

    @classmethod
    def parse(cls, mix: str, per_second: float | None) -> ProbeLoad:
        """Parse `http=9,tcp=10,exec=1`; a kind without a weight has 1."""
        try:
            weights = {
                kind.strip(): int(weight or 1)
                for kind, _, weight in (item.partition("=") for item in mix.split(","))
            }
        except ValueError:
            weights = {}
        return cls(weights, per_second)

    def check(self, pods: int) -> None:
        """Raise `InvalidInput` if that many pods cannot be probed at this rate."""
        most = PROBES_PER_POD * pods
        if self.per_second is not None and self.per_second > most:
            raise InvalidInput(
                f"{self.per_second:g} are more than two a second on each of {pods} pods",
                subject="probes per second",
            )

    def period(self, pods: int) -> int:
        """Return the whole seconds between two runs of one probe."""
        return 1 if self.per_second is None else max(1, int(PROBES_PER_POD * pods / self.per_second))

    def kinds(self, pods: int) -> list[list[str]]:
        """Return for each pod the kinds of its probes. Any run of consecutive probes has the mix as nearly as
        possible.
        """
        most = PROBES_PER_POD * pods
        wanted = most if self.per_second is None else round(self.per_second * self.period(pods))
        given: list[list[str]] = [[] for _ in range(pods)]
        credit = dict.fromkeys(self.mix, 0)
        total = sum(self.mix.values())
        for number in range(max(1, min(most, wanted))):
            for kind, weight in self.mix.items():
                credit[kind] += weight
            chosen = max(credit, key=credit.__getitem__)
            credit[chosen] -= total
            given[number // PROBES_PER_POD].append(chosen)
        return given

    def rate(self, pods: int, kind: str) -> float:
        """Return the probes of a kind per second."""
        return sum(kinds.count(kind) for kinds in self.kinds(pods)) / self.period(pods)

    def pods(self, count: int, ports: Sequence[int]) -> list[dict[str, Any]]:
        """Return manifests: a pod's first probe is its liveness, its second its readiness probe."""
        period = self.period(count)
        made = []
        for index, kinds in enumerate(self.kinds(count)):
            port = ports[index % len(ports)]
            makers: dict[str, Callable[..., dict[str, Any]]] = {
                "http": partial(workload.http_probe, port, f"/q{index}"),
                "tcp": partial(workload.tcp_probe, port),
                "exec": workload.exec_probe,
            }
            probes = [makers[kind](period=period) for kind in kinds]
            named = dict(zip(("livenessProbe", "readinessProbe"), probes, strict=False))
            made.append(workload.pod(f"q{index}", probes=[named]))
        return made
