"""Hold the result of a comparison: our decision and the kubelet's about one subject."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

ShadowKind = Literal[
    "admission", "preemption", "cgroups", "oom-score", "status", "restart", "back-off", "eviction",
    "pressure", "images", "cpus", "memory", "devices", "pod-resources", "probes",
]  # fmt: skip
KINDS: Final[tuple[ShadowKind, ...]] = get_args(ShadowKind)


class Comparison(NamedTuple):
    """Hold our decision and the kubelet's about `subject`, with the reasons of both, as texts.

    A difference is counted after it has lasted for `settle` seconds, because the kubelet acts some time after
    the cause: it updates a status a second after its container, and a QoS level a minute after its pod.
    """

    kind: ShadowKind
    subject: str
    ours: str
    kubelets: str
    our_reason: str = ""
    kubelets_reason: str = ""
    settle: float = 0.0

    @property
    def agrees(self) -> bool:
        return self.ours == self.kubelets


class NotJudged(NamedTuple):
    """Hold the subject of a decision that cannot be compared, and the reason."""

    kind: ShadowKind
    subject: str
    why: str


Finding = Comparison | NotJudged
