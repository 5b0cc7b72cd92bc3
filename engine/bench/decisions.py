"""Measure decisions: allocate devices, preempt pods for a critical one, collect images.

An agent that cannot do one of them within `limit` (at most `PATIENCE`) is noted as lacking it, which is not
a failure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from engine.api.errors import Unavailable
from engine.bench import workload
from engine.bench.agents import ready
from engine.bench.parts import Part, kubengine
from engine.bench.phases import BenchSession, BenchWatch, Figures, percentiles
from engine.bench.procfs import usage
from engine.wire import cri_v1_pb2 as cri

PATIENCE = 60.0
POLL_SECONDS = 0.02
RESOURCE = "bench.kubengine.dev/device"
UNUSED = "registry.invalid/kubengine/unused-"
CRITICAL = 2_000_000_000
PREEMPTIONS = 5
AT_ONCE = {"imageMinimumGCAge": "1ns", "imageMaximumGCAge": "2ns"}
"""With these an agent's first pass removes every unused image (kubelet 1.30 and later)."""


class Lacking(Unavailable):
    """Report that the agent under test does not support this."""


def devices(session: BenchSession) -> Figures:
    """Start a sample plugin with a device per pod; measure pods that request one each, from
    manifests to Ready.
    """
    session.clear()
    plugin = Part(
        "device plugin",
        kubengine(
            "device-plugin", "--resource", RESOURCE, "--count", str(session.pods),
            "--plugin-dir", str(session.workspace.root / "device-plugins"),
        ),
        session.workspace.path / "device-plugin.log",
    )  # fmt: skip
    try:
        session.watch(3)
        plugin.check()
        before, watch = session.containers(), BenchWatch.begin(session)
        written = time.time()
        session.put([_asks(f"d{index}") for index in range(session.pods)])
        try:
            session.wait_ready(limit=min(session.limit, PATIENCE))
        except Unavailable as error:
            raise Lacking(f"devices are not allocated: {error.message}", subject=session.kind.label) from None
        figures = watch.figures()
        session.put([_asks("too-many")])
        session.watch(1)
        if _is_ready(session, "too-many"):
            raise Lacking("allocates devices that don't exist", subject=session.kind.label)
        starts = [at - written for id, (_, at) in session.containers().items() if id not in before]
        return {
            **figures,
            **percentiles("start", starts),
            "cpu_ms_per_pod": figures["cpu_s"] / session.pods * 1e3,
        }
    finally:
        session.take(list(session.names))
        plugin.stop()


def _asks(name: str) -> dict[str, Any]:
    pod = workload.pod(name)
    pod["spec"]["containers"][0]["resources"]["limits"][RESOURCE] = "1"
    return pod


def preemption(session: BenchSession) -> Figures:
    """Measure critical pods on a node whose CPU a lower-priority pod holds: manifest written → pod running,
    victim gone.
    """
    session.clear()
    amount = f"{(os.cpu_count() or 1) * 600}m"
    walls = []
    watch = BenchWatch.begin(session)
    for index in range(PREEMPTIONS):
        victim, critical = f"v{index}", f"k{index}"
        for name, priority in ((victim, 0), (critical, CRITICAL)):
            pod = workload.pod(name, priority=priority)
            pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": amount, "memory": "1Mi"}}
            written = time.monotonic()
            session.put([pod])
            _eventually(session, lambda name=name: _is_ready(session, name), f"{name} does not run")  # type: ignore[misc]
        walls.append(time.monotonic() - written)
        if _is_ready(session, victim):
            raise Lacking("a critical pod ran while its victim was still running", subject=session.kind.label)
        session.clear()
    return {**watch.figures(), **percentiles("preempt", walls)}


def _is_ready(session: BenchSession, name: str) -> bool:
    prefix = f"{workload.PREFIX}{name}-"
    return any(pod["metadata"]["name"].startswith(prefix) and ready(pod) for pod in session.running.pods())


def _eventually(session: BenchSession, condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + min(session.limit, PATIENCE)
    while not condition():
        if time.monotonic() > deadline:
            raise Lacking(otherwise, subject=session.kind.label)
        time.sleep(POLL_SECONDS)


def image_gc(session: BenchSession) -> Figures:
    """Measure until unused images are gone, from the start of an agent that finds all of them too old.

    A kubelet cannot be asked to collect, but its first pass comes right after its start.
    """
    if session.runtime is None:
        raise Lacking("needs the hollow runtime, which can simulate images", subject="image-gc")
    version = session.kind.version()
    if version is not None and not version.collects_by_age:
        raise Lacking(
            "runs image garbage collection on its own schedule, every five minutes",
            subject=session.kind.label,
        )
    session.clear()
    session.running.stop()
    _pull(session)
    there = _unused(session)
    try:
        agent = session.start_agent(AT_ONCE)
    except Unavailable as error:
        raise Lacking(
            f"does not start with imageMaximumGCAge: {error.message}", subject=session.kind.label
        ) from None
    first: float | None = None
    deadline = agent.began + min(session.limit, PATIENCE)
    while left := _unused(session):
        now = time.monotonic()
        if first is None and left < there:
            first = now
        if now > deadline:
            raise Lacking(f"{left} of {there} unused images remain", subject=session.kind.label)
        agent.part.check()
        time.sleep(POLL_SECONDS)
    last = time.monotonic()
    cpu = usage(agent.part.pid).cpu - agent.start_cpu
    return {
        "wall_s": last - agent.began,
        "removing_s": last - (first or last),
        "images": float(there),
        "cpu_s": cpu,
        "cpu_ms_per_image": cpu / there * 1e3,
    }


def _pull(session: BenchSession) -> None:
    with workload.image_service(session.endpoint) as stub:
        for index in range(session.images):
            image = cri.ImageSpec(image=f"{UNUSED}{index}:1")
            stub.PullImage(cri.PullImageRequest(image=image), timeout=30)


def _unused(session: BenchSession) -> int:
    """Return how many are left. The pods' own image may stay: a kubelet keeps their dead containers for a
    while.
    """
    with workload.image_service(session.endpoint) as stub:
        images = stub.ListImages(cri.ListImagesRequest(), timeout=30).images
    return sum(any(tag.startswith(UNUSED) for tag in image.repo_tags) for image in images)
