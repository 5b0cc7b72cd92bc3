"""Hold one decision that both sides took: this engine's rules, and the kubelet."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

ShadowKind = Literal[
    "admission", "preemption", "cgroups", "oom-score", "status", "restart", "back-off", "eviction",
    "pressure", "images", "cpus", "memory", "devices", "pod-resources", "probes",
]  # fmt: skip
KINDS: Final[tuple[ShadowKind, ...]] = get_args(ShadowKind)


class Comparison(NamedTuple):
    """Compare one decision about `subject`: what the rules say and what the kubelet did, and both reasons, in
    words.

    A difference counts once it has stood for `settle` seconds, because the kubelet acts a while after the
    cause: a status follows a container by a second, a QoS level a pod by a minute.
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
    """Hold a decision of the kubelet that the record does not suffice to repeat, and why."""

    kind: ShadowKind
    subject: str
    why: str


Finding = Comparison | NotJudged
