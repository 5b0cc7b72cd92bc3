"""Run agents in turn, A B A B …, each in its own workspace, through all phases.

An interruption or a failure ends the run but not the clean-up, and the results so far are kept.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.api.errors import InvalidInput, KubengineError, Unavailable
from engine.bench import decisions, joined, phases, scraping, workload
from engine.bench.agents import AgentKind
from engine.bench.parts import HollowRuntimeProcess, ProbeTarget
from engine.bench.phases import BenchSession, Figures
from engine.bench.probe_load import ProbeLoad
from engine.bench.workspace import Workspace, uninterrupted

Say = Callable[[str], None]

PHASES: dict[str, Callable[[BenchSession], Figures]] = {
    "start": phases.start,
    "pods": phases.pods,
    "idle": phases.idle,
    "statistics": scraping.scraping,
    "probing": phases.probing,
    "churn": phases.churn,
    "refill": phases.refill,
    "restart": phases.restart,
    "devices": decisions.devices,
    "preemption": decisions.preemption,
    "image-gc": decisions.image_gc,
    "api": joined.joined,
}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Hold the options of a node bench.

    `runtime` is `hollow` or a CRI socket; `limit` bounds each wait in seconds; `kubeconfig` is an
    administrator's for the cluster that the `api` phase joins.
    """

    kubelet: Path | None = None
    pods: int = 60
    repetitions: int = 3
    seconds: float = 20.0
    runtime: str = "hollow"
    phases: tuple[str, ...] = tuple(PHASES)
    limit: float = 300.0
    load: ProbeLoad = field(default_factory=ProbeLoad)
    images: int = 500
    kubeconfig: Path | None = None


@dataclass(slots=True)
class NodeBenchResult:
    """Hold results: `runs[label][phase]` is a list with the figures of each repetition."""

    options: dict[str, Any]
    machine: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    runs: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)
    complete: bool = False


class NodeBench:
    """Run the bench. `result` is valid at any moment, also after `run` has raised."""

    def __init__(self, options: BenchOptions, say: Say) -> None:
        unknown = set(options.phases) - set(PHASES)
        if unknown:
            raise InvalidInput(
                f"expected some of {', '.join(PHASES)}; got {', '.join(sorted(unknown))}", subject="--phases"
            )
        if "start" not in options.phases:
            raise InvalidInput("start is needed by every other phase", subject="--phases")
        options.load.check(options.pods)
        self.options = options
        self._say = say
        self.kinds = [AgentKind("engine")]
        if options.kubelet is not None:
            self.kinds.append(AgentKind("kubelet", options.kubelet.absolute()))
        named = {
            name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()
        }
        self.result = NodeBenchResult(
            named, {"system": platform.platform(), "python": platform.python_version()}
        )

    def run(self) -> NodeBenchResult:
        """Run all phases. Raise what stopped them; the result so far stays in `result`."""
        for kind in self.kinds:
            version = kind.version()
            self.result.versions[kind.label] = "this engine" if version is None else version.text
            self._note(*(f"{kind.label}: {note}" for note in (version.notes() if version else ())))
        for repetition in range(1, self.options.repetitions + 1):
            for kind in self.kinds:
                self._say(f"repetition {repetition} of {self.options.repetitions}: {kind.label}")
                self._measure(kind)
        self.result.complete = True
        return self.result

    def _measure(self, kind: AgentKind) -> None:
        workspace = Workspace()
        parts: list[HollowRuntimeProcess | ProbeTarget] = []
        session: BenchSession | None = None
        others: set[str] = set()
        try:
            workspace.make_cgroups()
            runtime = None
            endpoint = self.options.runtime
            if endpoint == "hollow":
                runtime = HollowRuntimeProcess(workspace.runtime_socket, workspace.path)
                parts.append(runtime)
                endpoint = f"unix://{workspace.runtime_socket}"
            else:
                workload.expect_image(endpoint)
                others = workload.sandboxes(endpoint)
            target = ProbeTarget(workspace.path)
            parts.append(target)
            options = self.options
            session = BenchSession(
                kind, workspace, endpoint, runtime, target, options.pods, options.seconds, options.limit,
                options.load, options.images, options.kubeconfig,
            )  # fmt: skip
            self._phases(session)
        except (KubengineError, OSError):
            if workspace.is_full():
                self._note(f"the file system of {workspace.path} is full")
            raise
        finally:
            self._end(session, parts, workspace, others)

    def _phases(self, session: BenchSession) -> None:
        rows = self.result.runs.setdefault(session.kind.label, {})
        for name, phase in PHASES.items():
            if name not in self.options.phases:
                continue
            began = time.monotonic()
            try:
                figures = phase(session)
            except decisions.Lacking as error:
                self._note(f"{name}: {error}")
            else:
                rows.setdefault(name, []).append(figures)
            if session.agent is not None:
                self._note(*(f"not counted: {each}" for each in session.agent.uncounted))
            self._say(f"  {name}: {time.monotonic() - began:.1f} s")

    def _end(
        self,
        session: BenchSession | None,
        parts: Iterable[HollowRuntimeProcess | ProbeTarget],
        workspace: Workspace,
        others: set[str],
    ) -> None:
        """Clean up after an agent; `others` are the sandboxes that the runtime had before."""
        with uninterrupted():
            if session is not None and session.agent is not None:
                if session.runtime is None:
                    self._empty(session)
                session.agent.stop(kill=session.runtime is not None)
                if session.runtime is None:
                    self._remove_leftovers(session, others)
            for part in parts:
                part.stop(kill=True)
            left = workspace.remove()
            if session is not None and session.kind.kubelet is not None:
                workload.remove_default_logs()
        if left:
            self._note(f"could not be removed: {', '.join(left)}")

    def _remove_leftovers(self, session: BenchSession, others: set[str]) -> None:
        """Remove sandboxes that a kubelet leaves: it removes ended ones later, and exits before those of
        removed manifests end.
        """
        try:
            workload.remove_sandboxes(session.endpoint, workload.sandboxes(session.endpoint) - others)
        except Unavailable as error:
            self._note(f"pods may be left in the runtime: {error}")

    def _empty(self, session: BenchSession) -> None:
        """Have the agent end its own pods, because the runtime stays."""
        try:
            session.take(list(session.names))
            session.wait_ready()
        except (KubengineError, OSError) as error:
            self._note(f"pods may be left in the runtime: {error}")

    def _note(self, *notes: str) -> None:
        for note in notes:
            if note not in self.result.notes:
                self.result.notes.append(note)
                self._say(note)
