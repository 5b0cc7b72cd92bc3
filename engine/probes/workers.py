"""Keeps the state of pods, containers and probes that is not in the native loop, and describes it. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine._fast.probing import state as rule
from engine._fast.probing.state import RUNNING, WAITING
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.probes.cheaper import cheaper
from engine.probes.messages import Reason, exec_text, text
from engine.probes.networks import NETWORK_OF_THE_NODE
from engine.probes.request import exec_request, grpc_request, h2c_request, http_request
from engine.probes.spec import GETS, LOOPBACK, ProbeSpec

if TYPE_CHECKING:
    from engine._fast.probing.loop import ProbeInfo

RESULTS = ("", "success", "failure", "unknown")
OUTCOMES = ("success", "failure", "warning", "unknown", "error")


class Worker:
    """Hold one probe: its key in the native loop, and the result and output that the loop last reported."""

    __slots__ = ("container", "key", "output", "published", "spec")

    def __init__(self, spec: ProbeSpec, container: ContainerProbes, key: int) -> None:
        self.spec = spec
        self.container = container
        self.key = key
        self.published = 0
        self.output = ""

    def target(self) -> tuple[str, int]:
        """Address (or name) and port. Raises `InvalidInput` where there is none yet, or never."""
        pod = self.container.pod
        if self.spec.network == "pod" and not pod.is_inside():
            raise InvalidInput(f"the pod's network is not known: {pod.network_trouble or 'it has none yet'}")
        # Seen from inside, the containers listen on the loopback address, too.
        if self.spec.network == "pod" and not self.spec.host:
            return LOOPBACK[6 if ":" in pod.address else 4], self.spec.resolve_port()
        host = self.spec.host or pod.address
        if not host:
            raise InvalidInput("the pod has no address yet")
        return host, self.spec.resolve_port()

    @property
    def network(self) -> int:
        """Return a descriptor of the network namespace that the probe leaves from."""
        return self.container.pod.network if self.spec.network == "pod" else NETWORK_OF_THE_NODE

    def why(self, reason: int, detail: int, excerpt: bytes) -> str:
        """Return why the probe did not succeed: the loop's `Reason` with its detail, and what it has read."""
        spec = self.spec
        try:
            if reason == Reason.LIBRARY:
                return self.output
            if spec.kind == "exec":
                if reason == Reason.NO_TARGET:
                    exec_request(spec.command, spec.timeout)
                    return "there is no runtime to run the command"
                return exec_text(spec, reason, detail, excerpt)
            host, port = self.target()
            # Without a target the request could not be written, which is tried again for its error.
            if reason == Reason.NO_TARGET and spec.kind in GETS:
                request_parts(spec, host, port)
            return text(spec, host, port, reason, detail, excerpt)
        except InvalidInput as error:
            return str(error)


def request_parts(spec: ProbeSpec, host: str, port: int) -> tuple[bytes, bytes, bytes]:
    """Return a probe's request in three parts: before the host name, the name if it is not the address, and
    after it.

    Raises `InvalidInput` if the request cannot be written.
    """
    match spec.kind:
        case "http" | "https":
            return http_request(host, port, spec.path, spec.headers)
        case "h2c":
            return h2c_request(host, port, spec.path, spec.headers)
        case "grpc":
            head, tail = grpc_request(spec.service)
            return head, b"", tail
        case _:
            return b"", b"", b""


_NOTHING_RESTORED = ("", False, False)


class ContainerProbes:
    """Hold one container with probes. `number` identifies its incarnation `id` in the native loop."""

    __slots__ = (
        "id",
        "liveness",
        "name",
        "number",
        "pod",
        "readiness",
        "restored",
        "started_at",
        "startup",
        "state",
    )

    def __init__(self, pod: PodProbes, name: str) -> None:
        self.pod = pod
        self.name = name
        self.id = ""
        self.number = 0
        self.state = WAITING
        self.started_at = 0.0
        self.liveness: Worker | None = None
        self.readiness: Worker | None = None
        self.startup: Worker | None = None
        self.restored: tuple[str, bool, bool] = _NOTHING_RESTORED
        """What an earlier agent knew of a container id: ready, started."""

    def workers(self) -> list[Worker]:
        return [worker for worker in (self.startup, self.readiness, self.liveness) if worker is not None]

    @property
    def runtime_id(self) -> str:
        """Return the id as the runtime knows it, without its scheme."""
        return self.id.rpartition("://")[2]

    def started(self) -> bool:
        if self.state != RUNNING:
            return False
        startup = self.startup
        # The end of a pod ends its startup probes, even those that have failed: as if there were none.
        if startup is None or startup.published == rule.SUCCESS or self.pod.deleted:
            return True
        # Until the first result of this agent, the earlier agent's word counts: a restart of the agent must
        # not make containers unready.
        return startup.published == rule.NONE and self.restored[0] == self.id and self.restored[2]

    def ready(self) -> bool:
        if not self.started():
            return False
        readiness = self.readiness
        if readiness is None or readiness.published == rule.SUCCESS:
            return True
        return readiness.published == rule.NONE and self.restored[0] == self.id and self.restored[1]

    def initial(self, type: str) -> int:
        """Return the first result of an incarnation: that of an earlier agent, or the type's default (0)."""
        id, ready, started = self.restored
        known = id == self.id and bool(id)
        good = known and ((type == "readiness" and ready) or (type == "startup" and started))
        return rule.SUCCESS if good else rule.NONE


class PodProbes:
    __slots__ = (
        "address",
        "containers",
        "deleted",
        "network",
        "network_trouble",
        "phase_terminal",
        "pod",
        "sandbox",
    )

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.address = pod.status.pod_ip
        self.phase_terminal = False
        self.deleted = False
        self.containers: tuple[ContainerProbes, ...] = ()
        self.sandbox = ""
        """That the runtime has for it, if it is ready."""
        self.network = NETWORK_OF_THE_NODE
        """A descriptor of that sandbox's network namespace, where a probe goes out from there."""
        self.network_trouble = ""

    def within(self) -> list[Worker]:
        """Return the probes that go out from the pod's network."""
        return [w for container in self.containers for w in container.workers() if w.spec.network == "pod"]

    def is_inside(self) -> bool:
        """Tell whether the pod's network is open."""
        return self.network != NETWORK_OF_THE_NODE

    def container(self, name: str) -> ContainerProbes | None:
        for container in self.containers:
            if container.name == name:
                return container
        return None


def described(worker: Worker, info: ProbeInfo) -> dict[str, Any]:
    """Describe one probe as `kubengine probes` shows it."""
    of, spec = worker.container.pod.pod, worker.spec
    failing = info["last"] == rule.FAILURE
    return {
        "pod": of.full_name,
        "pod_uid": of.uid,
        "container": spec.container,
        "container_id": worker.container.id,
        "type": spec.type,
        "kind": spec.kind,
        "network": spec.network,
        "target": " ".join(spec.command) if spec.kind == "exec" else _where(worker),
        "result": RESULTS[info["published"]],
        "last": RESULTS[info["last"]],
        "streak": info["run"],
        "threshold": spec.failure_threshold if failing else spec.success_threshold,
        "on_hold": info["on_hold"],
        "ended": info["ended"],
        "duration_seconds": info["duration"],
        "lateness_seconds": info["lateness"],
        "late": info["late"],
        "next_seconds": info["next"],
        "period_seconds": spec.period,
        "outcomes": dict(zip(OUTCOMES, info["outcomes"], strict=True)),
        "cpu_seconds": info["cpu"] if spec.kind == "exec" else None,
        "cheaper": cheaper(spec.command) if spec.kind == "exec" else "",
        "output": worker.output,
    }


def _where(worker: Worker) -> str:
    try:
        host, port = worker.target()
    except InvalidInput as error:
        return str(error)
    name = f"[{host}]" if ":" in host else host
    path = worker.spec.path if worker.spec.kind in GETS else ""
    return f"{name}:{port}{path}"
