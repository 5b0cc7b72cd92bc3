"""The page of a node with a thousand pods: how much is sent, what a change costs a browser, keys, a phone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec
from engine.api.status import ContainerState, ContainerStateRunning, ContainerStatus, PodStatus
from engine.server.page.live import live
from engine.server.page.watch import PageWatch
from tests.server.browser import PROGRAM, Browser
from tests.server.served import Served, View

PODS = 1000


def pod(number: int, phase: str = "Running") -> Pod:
    running = ContainerState(running=ContainerStateRunning(started_at="2026-01-01T00:00:00Z"))
    container = ContainerStatus(
        name="main", image="example.com/web:1", image_id="x", ready=True, restart_count=0, state=running
    )
    return Pod(
        metadata=ObjectMeta(name=f"pod-{number:04}", namespace="default", uid=f"uid-{number:04}"),
        spec=PodSpec(containers=[Container(name="main", image="example.com/web:1")]),
        status=PodStatus(phase=phase, qos_class="Burstable", container_statuses=[container]),
    )


class Cgroups:
    def describe(self) -> dict[str, Any]:
        files = {
            "cpu.weight": {"actual": "39", "wanted": "39"},
            "memory.max": {"actual": "67108864", "wanted": "67108864"},
        }
        groups = [
            {
                "path": f"/kubepods/burstable/pod{each:04}",
                "qosClass": "Burstable",
                "uid": f"uid-{each:04}",
                "pod": f"default/pod-{each:04}",
                "files": files,
            }
            for each in range(PODS)
        ]
        return {"enabled": True, "version": 2, "driver": "cgroupfs", "root": "/kubepods", "groups": groups}


class Probes:
    def __init__(self) -> None:
        self.failing: set[int] = set()

    def describe(self) -> dict[str, Any]:
        return {"probes": [self._probe(number) for number in range(PODS)]}

    def _probe(self, number: int) -> dict[str, Any]:
        return {
            "pod_uid": f"uid-{number:04}",
            "pod": f"default/pod-{number:04}",
            "container": "main",
            "type": "readiness",
            "kind": "http",
            "target": "http://10.0.0.1:8080/",
            "result": "failure" if number in self.failing else "success",
            "last": "success",
            "streak": 1,
            "threshold": 1,
            "late": 0,
            "output": "",
            "period_seconds": 10,
            "duration_seconds": 0.001,
            "lateness_seconds": 0.0001,
        }


def crowded() -> View:
    known = [pod(number) for number in range(PODS)]
    return View(known=known, components={"cgroups": Cgroups(), "probes": Probes()})


async def first_rows(view: View, parts: set[str]) -> dict[str, bytes]:
    """Return the first rows that a new reader gets of each part, until it has those of `parts`."""
    rows: dict[str, bytes] = {}
    news = live(PageWatch(view)).body
    assert not isinstance(news, bytes)
    try:
        async with asyncio.timeout(240):
            async for block in news:
                for event in block.split(b"\n\n"):
                    name, _, data = event.removeprefix(b"event: ").partition(b"\ndata: ")
                    rows.setdefault(name.decode(), data)
                if parts <= rows.keys():
                    return rows
    finally:
        await news.aclose()  # type: ignore[attr-defined]
    raise AssertionError(f"only {sorted(rows)}")


async def test_all_of_it_is_less_than_a_megabyte() -> None:
    rows = await first_rows(crowded(), {"pods", "cgroups", "probes", "use"})
    assert len(json.loads(rows["pods"])["rows"]) == PODS
    assert sum(map(len, rows.values())) < 1_000_000


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs chromium on the PATH (Debian: chromium)")
async def test_it_stays_usable(serve: Any, tmp_path: Path) -> None:
    view = crowded()
    served: Served = await serve(view)
    url = f"http://127.0.0.1:{view.config.read_only_port}/"
    await asyncio.to_thread(use, url, served.view, tmp_path / "profile")


COUNT_MOVES = """
window.moves = 0;
new MutationObserver((records) => {
  moves += records.reduce((sum, each) => sum + each.addedNodes.length + each.removedNodes.length, 0);
}).observe(document.querySelector('%s tbody'), {childList: true});
"""


def use(url: str, view: View, profile: Path) -> None:
    with Browser(profile) as browser:
        browser.size(1400, 1000)
        browser.open(url)
        for part in ("pods", "cgroups", "probes"):
            browser.until(f"document.querySelectorAll('#{part} tbody tr').length === {PODS}")
        only_what_changes_is_touched(browser, view)
        rows_that_change_places_move_alone(browser, view)
        a_filter_finds(browser)
        for width, height in ((1400, 1000), (390, 844)):
            browser.size(width, height, phone=width < 500)
            browser.until(f"innerWidth === {width}")
            assert browser.value("document.documentElement.scrollWidth") <= width
        papers = set()
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            papers.add(browser.value("getComputedStyle(document.body).backgroundColor"))
        assert len(papers) == 2
        assert browser.complaints == []


FOCUSED = "document.activeElement.cells?.[0].innerText"


def only_what_changes_is_touched(browser: Browser, view: View) -> None:
    """Check that rows that stay are not moved, and that the focused row keeps the focus.

    If that row is removed, the next row gets the focus.
    """
    browser.value("document.querySelectorAll('#pods tbody tr')[500].focus()")
    browser.value(COUNT_MOVES % "#pods")
    view.known = view.known[1:]
    browser.until(f"document.querySelectorAll('#pods tbody tr').length === {PODS - 1}")
    assert browser.value("moves") == 1
    assert browser.value(FOCUSED) == "default/pod-0500"
    view.known = [pod(0, "Failed"), *(each for each in view.known if each.uid != "uid-0500")]
    browser.until("document.querySelector('#pods tbody').innerText.includes('Failed')")
    assert browser.value("moves") == 3
    assert browser.value(FOCUSED) == "default/pod-0501"
    browser.press("ArrowDown")
    assert browser.value(FOCUSED) == "default/pod-0502"
    view.known = [pod(number) for number in range(PODS)]
    browser.until(f"document.querySelectorAll('#pods tbody tr').length === {PODS}")


def rows_that_change_places_move_alone(browser: Browser, view: View) -> None:
    probes: Any = view.components["probes"]
    first = "document.querySelector('#probes tbody tr').cells[0].innerText"
    browser.value("document.querySelectorAll('#probes tbody tr')[700].focus()")
    browser.value(COUNT_MOVES % "#probes")
    probes.failing = {700}
    browser.until(f"{first} === 'default/pod-0700/main'")
    assert browser.value("moves") == 2
    assert browser.value(FOCUSED) == "default/pod-0700/main"
    probes.failing = set()
    browser.until(f"{first} === 'default/pod-0000/main'")
    assert browser.value("moves") == 4
    names = "[...document.querySelectorAll('#probes tbody tr')].map((row) => row.cells[0].innerText)"
    assert browser.value(names) == [f"default/pod-{number:04}/main" for number in range(PODS)]


def a_filter_finds(browser: Browser) -> None:
    browser.press("/")
    browser.do("Input.insertText", text="pod-07")
    for part in ("pods", "cgroups", "probes"):
        browser.until(f"document.querySelectorAll('#{part} tbody tr').length === 100")
    browser.press("Escape")
    browser.until(f"document.querySelectorAll('#pods tbody tr').length === {PODS}")
