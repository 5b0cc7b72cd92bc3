"""The way of one pod that docs/architecture.md shows is the way that a pod takes."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.node_rig import Rig, container
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
WITHOUT_CGROUPS = ("engine/cgroups/manager.py", "create_pod")
"""The one step that a node which manages no cgroups does not take."""

Entrance = tuple[str, str]


def shown() -> list[Entrance]:
    text = (ROOT / "docs/architecture.md").read_text().partition("## One pod's way")[2]
    return re.findall(r"^\d+\. `(engine/\S+\.py)` `(\w+)`: ", text, re.MULTILINE)


@contextmanager
def entrances() -> Iterator[list[Entrance]]:
    """Every function of the package that is called meanwhile, in each thread, in order."""
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


async def test_a_pod_takes_the_way_that_is_shown(rig: Rig):
    with entrances() as seen:
        await rig.start()
        first_of_node = len(seen)
        rig.write("web", {"containers": [container()]})
        await eventually(lambda: rig.phase("web") == "Running")
    of_pod = seen[first_of_node:]
    way = shown()
    files = [file for file, _ in way]
    assert len(set(files)) <= 15
    assert max(map(files.count, files)) <= 2
    taken = [step for step in way if step != WITHOUT_CGROUPS]
    assert [step for step in taken if step not in of_pod] == []
    assert sorted(taken, key=of_pod.index) == taken
    module, function = WITHOUT_CGROUPS
    assert f"def {function}(" in (ROOT / module).read_text()
