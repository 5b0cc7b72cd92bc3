"""The page of a node that has something of everything, in a browser of three sizes, light and dark."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.server.browser import PROGRAM, Browser
from tests.server.node_in_use import IMAGES, PODS, node_in_use

SIZES = {"desk": (1400, 1665), "tablet": (900, 1000), "phone": (390, 844)}
SHOWN = {
    "pods": ["Guaranteed", "Burstable", "BestEffort", "0/1"],
    "eviction": [
        "memory.available < 100Mi",
        "away",
        "more than it requests",
        "1 critical pod is passed over",
    ],
    "devices": ["example.com/gpu: 5 of 8 held", "NUMA 0", "NUMA 1", "ml/trainer/main", "ml/serving/main"],
    "cpus": ["policy none", "NUMA 0"],
    "cgroups": ["kubepods", "besteffort", "burstable", "64.0 MiB", *PODS],
    "probes": ["shop/checkout/main", "failure", "shop/web/main", "success", "ms"],
    "images": ["in use by a container", "the minimum age is", "pinned in the runtime", *IMAGES],
    "decisions": ["admitted", "allocated", *PODS],
}
WIDER = ".filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent)"
OVERLAPS = f"[...document.querySelectorAll('.thresholds p, .meters > div, nav, .top')]{WIDER}"
CUT = f"[...document.querySelectorAll('.scroll')]{WIDER}"
BROKEN = """
[...document.querySelectorAll('#cgroups tbody td:first-child')].filter((each) => each.clientHeight > 40)
  .map((each) => each.innerText).filter((name) => !name.includes('/'))
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs chromium on the PATH (Debian: chromium)")
async def test_the_page_shows_a_node_in_use_and_fits_each_size(
    tmp_path: Path, private_cgroup_root: str
) -> None:
    async with node_in_use(tmp_path, private_cgroup_root) as url:
        await asyncio.to_thread(look, url, tmp_path)


def look(url: str, directory: Path) -> None:
    """Return the directory for pictures of the documents, from `KUBENGINE_PICTURES`."""
    pictures = Path(os.environ.get("KUBENGINE_PICTURES", directory))
    with Browser(directory / "profile") as browser:
        browser.size(*SIZES["desk"])
        browser.open(url)
        for part, words in SHOWN.items():
            for word in words:
                browser.until(f"document.getElementById('{part}')?.textContent.includes('{word}')")
        browser.until(f"document.querySelectorAll('#pods td.good').length === {len(PODS)}")
        browser.until("document.querySelectorAll('#devices .held').length === 5")
        every_pod_and_group_has_its_use(browser)
        browser.until("document.querySelector('tr.new') === null")
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            for name, (width, height) in SIZES.items():
                browser.size(width, height, phone=name == "phone")
                browser.until(f"innerWidth === {width}")
                assert browser.value("document.documentElement.scrollWidth") <= width
                for wrong in (OVERLAPS, CUT, BROKEN):
                    assert browser.value(wrong) == [], (name, wrong)
                browser.picture(pictures / f"page-{name}-{scheme}.png")
        assert browser.complaints == []


def every_pod_and_group_has_its_use(browser: Browser) -> None:
    """Wait until each row of pods and cgroups shows CPU and memory, in columns 6 and 7."""
    for part in ("pods", "cgroups"):
        rows = f"[...document.querySelectorAll('#{part} tbody tr')]"
        browser.until(f"{rows}.every((row) => /^[0-9.]+m?$/.test(row.cells[5].innerText))")
        browser.until(f"{rows}.every((row) => row.cells[6].innerText.endsWith('B'))")
