"""Draw `docs/pictures/beside-a-kubelet.svg`, the home page's chart, from the figures of docs/density.md.

Run `python package/pages/chart.py` after the first table of that page has changed; a test compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).parents[2]
DENSITY = ROOT / "docs" / "density.md"
CHART = ROOT / "docs" / "pictures" / "beside-a-kubelet.svg"
SECTION: Final = "## Beside a kubelet on containerd"
WIDTH, BAR, STEP, LEFT, TOP = 720, 300, 52, 250, 64
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.head{font-size:15px;font-weight:600}"
    ".small{font-size:12px}.ours{fill:#2a6f97}.theirs{fill:#b9c4cc}"
    "@media(prefers-color-scheme:dark){text{fill:#d7dde3}.ours{fill:#61a5c2}.theirs{fill:#56606a}}"
)


class Row(NamedTuple):
    """Hold one pair of bars: a figure of the table, with its caption and unit."""

    phase: str
    figure: str
    caption: str
    unit: str


ROWS: Final = (
    Row("idle", "cpu_ms_per_pod_per_s", "CPU of the idle agent, per pod", "ms/s"),
    Row("idle", "rss_mb", "Memory of the idle agent", "MB"),
    Row("probing", "cpu_us_per_probe", "CPU per probe", "µs"),
    Row("pods", "cpu_ms_per_pod", "CPU to start a pod", "ms"),
    Row("pods", "wall_s", "All 60 pods Running after", "s"),
    Row("restart", "wall_s", "All pods known after a restart", "s"),
)


def figures(page: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Read the first table below SECTION: (phase, figure) → (Kubengine, kubelet)."""
    _, _, rest = page.partition(SECTION)
    found: dict[tuple[str, str], tuple[float, float]] = {}
    phase = ""
    for line in rest.partition("\n### ")[0].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 5 and re.fullmatch(r"[\d.e+-]+", cells[2]):
            phase = cells[0] or phase
            found[phase, cells[1]] = float(cells[2]), float(cells[3])
    return found


def drawn(page: str) -> str:
    """Return the chart as SVG. Raises `KeyError` if the page lacks a figure."""
    known = figures(page)
    height = TOP + STEP * len(ROWS) + 8
    title = "60 pods on containerd: Kubengine and kubelet v1.36.2 on the same machine (lower is better)"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{title}</title><style>{_STYLE}</style>",
        '<text class="head" x="0" y="18">60 pods on containerd, on the same machine</text>',
        '<rect class="ours" x="0" y="32" width="12" height="12"/><text x="18" y="43">Kubengine</text>',
        '<rect class="theirs" x="110" y="32" width="12" height="12"/>',
        '<text x="128" y="43">kubelet v1.36.2</text>',
        '<text class="small" x="250" y="43">lower is better</text>',
    ]
    for number, row in enumerate(ROWS):
        ours, theirs = known[row.phase, row.figure]
        top = TOP + STEP * number
        parts.append(f'<text x="0" y="{top + 22}">{row.caption}</text>')
        for kind, value, at in (("ours", ours, top), ("theirs", theirs, top + 18)):
            length = max(2, round(BAR * value / max(ours, theirs)))
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{at}" width="{length}" height="15" rx="2"/>')
            parts.append(
                f'<text class="small" x="{LEFT + length + 7}" y="{at + 12}">{_short(value)} {row.unit}</text>'
            )
    return "\n".join([*parts, "</svg>\n"])


def _short(value: float) -> str:
    """Return two significant digits, without an exponent."""
    return f"{float(f'{value:.2g}'):g}"


if __name__ == "__main__":
    CHART.write_text(drawn(DENSITY.read_text()))
