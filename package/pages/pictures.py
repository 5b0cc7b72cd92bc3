"""Draw decisions: a block of text becomes one SVG without references.

Each line is a box below the previous one. `QUESTION → OUTCOME` adds a box to its right; the text between the
question mark and the arrow is the label of the arrow.
"""

from __future__ import annotations

import re
from html import escape

BLOCK = re.compile(r"^```decision\n(.*?)^```$", re.MULTILINE | re.DOTALL)

LINE = 17
LEFT, MIDDLE, RIGHT = 380, 60, 290
LETTERS = {LEFT: 50, RIGHT: 36}
"""How many letters fit into a box, by its width."""
GAP = 22


def drawn(text: str) -> str:
    """Return the drawing of a block's lines, as SVG."""
    parts, y = [], 4
    rows = [_row(line) for line in text.strip().splitlines()]
    for number, (question, answer, outcome) in enumerate(rows):
        lines, outcome_lines = _wrapped(question, LETTERS[LEFT]), _wrapped(outcome, LETTERS[RIGHT])
        height = max(len(lines), len(outcome_lines)) * LINE + 16
        parts.append(_box(2, y, LEFT, height, lines, "step"))
        middle = y + height / 2
        if outcome:
            across = LEFT + MIDDLE
            parts.append(f'<path d="M{LEFT + 2} {middle}H{across}" marker-end="url(#tip)"/>')
            parts.append(f'<text x="{LEFT + 8}" y="{middle - 5}" class="on">{escape(answer)}</text>')
            parts.append(_box(across + 8, y, RIGHT, height, outcome_lines, "end"))
        if number + 1 < len(rows):
            below = y + height
            parts.append(f'<path d="M{LEFT / 2} {below}v{GAP - 7}" marker-end="url(#tip)"/>')
            if answer in _OTHER:
                parts.append(f'<text x="{LEFT / 2 + 7}" y="{below + 14}" class="on">{_OTHER[answer]}</text>')
        y += height + GAP
    width = LEFT + MIDDLE + RIGHT + 14
    name = escape(rows[0][0])
    return (
        f'<svg class="decision" role="img" aria-label="{name}" viewBox="0 0 {width} {y - GAP + 6}" '
        f'style="max-width:{width}px">{_TIP}{"".join(parts)}</svg>\n'
    )


_OTHER = {"yes": "no", "no": "yes"}
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z"/></marker></defs>'
)


def _row(line: str) -> tuple[str, str, str]:
    """Split a line into question, label of the arrow, and outcome."""
    question, arrow, outcome = line.partition(" → ")
    if not arrow:
        return line, "", ""
    named = re.fullmatch(r"(.*\?) (\w+)", question)
    return (*((named[1], named[2]) if named else (question, "")), outcome)


def _wrapped(text: str, letters: int) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= letters:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _box(x: float, y: float, width: float, height: float, lines: list[str], kind: str) -> str:
    first = y + (height - len(lines) * LINE) / 2 + 13
    words = "".join(
        f'<tspan x="{x + width / 2}" y="{first + number * LINE}">{escape(line)}</tspan>'
        for number, line in enumerate(lines)
    )
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{kind}"/><text>{words}</text>'
    )
