"""A pod passes the milestones that docs/architecture.md lists, in order and within a budget of files."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.node_rig import Rig, container
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
WITHOUT_CGROUPS = ("engine/cgroups/manager.py", "create_pod")
"""The one step that a node which manages no cgroups does not take."""

NOT_THE_AGENT = ("engine/runtime/", "engine/testing/", "engine/wire/")
STATUS = ("engine/node/sync/status.py", "pod_status")
CALLS, FILES, STATUSES = 1_500, 81, 2
"""The budget of one more static pod: Python calls, the files that they are in, and computed statuses.

Two starts are traced, because background tasks of the node run meanwhile: what only one has does not count.
"""

Entrance = tuple[str, str]


def shown() -> list[Entrance]:
    text = (ROOT / "docs/architecture.md").read_text().partition("## Milestones of a pod")[2]
    return re.findall(r"^\d+\. `(engine/\S+\.py)` `(\w+)`: ", text, re.MULTILINE)


@contextmanager
def entrances() -> Iterator[list[Entrance]]:
    """Yield a list that records each call of a function of the engine, in any thread: file and name, in
    order."""
    seen: list[Entrance] = []
    prefix = f"{ROOT}/"

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{prefix}engine/"):
            seen.append((frame.f_code.co_filename.removeprefix(prefix), frame.f_code.co_name))

    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])  # type: ignore[arg-type]


def unseen(condition: Callable[[], bool]) -> Callable[[], bool]:
    """Return the condition without a trace of its own calls, of which a slow machine makes more."""

    def check() -> bool:
        profile = sys.getprofile()
        sys.setprofile(None)
        try:
            return condition()
        finally:
            sys.setprofile(profile)

    return check


async def test_a_pod_passes_the_milestones_in_order(rig: Rig):
    with entrances() as seen:
        await rig.start()
        first_of_node = len(seen)
        rig.write("web", {"containers": [container()]})
        await eventually(lambda: rig.phase("web") == "Running")
    of_pod = seen[first_of_node:]
    taken = [step for step in shown() if step != WITHOUT_CGROUPS]
    assert len(taken) >= 20
    assert [step for step in taken if step not in of_pod] == []
    assert sorted(taken, key=of_pod.index) == taken
    module, function = WITHOUT_CGROUPS
    assert f"def {function}(" in (ROOT / module).read_text()


async def test_a_second_pod_stays_within_its_budget(rig: Rig):
    """Counts what one more static pod costs in Python, from its manifest to Running."""
    await rig.start()
    rig.write("first", {"containers": [container()]})
    await eventually(lambda: rig.phase("first") == "Running")
    calls, files = [], []
    for name in ("second", "third"):
        with entrances() as seen:
            rig.write(name, {"containers": [container()]})
            await eventually(unseen(lambda name=name: rig.phase(name) == "Running"))
        agent = [entrance for entrance in seen if not entrance[0].startswith(NOT_THE_AGENT)]
        calls.append(len(agent))
        files.append({file for file, _ in agent})
        assert agent.count(STATUS) <= STATUSES
    assert min(calls) <= CALLS
    assert len(files[0] & files[1]) <= FILES
