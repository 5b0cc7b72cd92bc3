"""Format the report of a shadow as a table, as an HTML page, and as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from engine.metrics import Registry
from engine.shadow.ledger import AgreementLedger

MAX_SHOWN: Final = 500
NONE_SEEN: Final = "none was seen"
_STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#1c2530}
table{border-collapse:collapse;width:100%;margin:.6rem 0 1.6rem}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #dde3ea;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}.bad{color:#b3261e}.good{color:#1b6e3c}
code{font-size:.92em;overflow-wrap:anywhere}
@media(prefers-color-scheme:dark){body{background:#12171d;color:#dfe6ee}th,td{border-color:#2c3540}}
"""


def verdict(report: Mapping[str, Any]) -> str:
    """Return a sentence that says how many decisions were compared, and how many of them differ."""
    span = _span(report["now"] - report["began"])
    taken = report["agreed"] + report["differed"]
    if not taken:
        return f"no decision could be compared in {span}"
    without = [kind for kind, tally in report["kinds"].items() if not tally["agreed"] + tally["differed"]]
    rest = f"; nothing was compared of {', '.join(without)}" if without else ""
    if not report["differed"]:
        return f"all {taken} decisions in {span} agree{rest}"
    return f"{report['differed']} of {taken} decisions in {span} differ{rest}"


def kind_rows(report: Mapping[str, Any]) -> list[tuple[str, int, int, str]]:
    """Return a row per kind: its name, how many agreed, how many differed, and what was not judged and
    why.
    """
    rows = []
    for kind, tally in report["kinds"].items():
        not_judged = "; ".join(f"{count} × {why}" for why, count in tally["notJudged"].items())
        compared = tally["agreed"] or tally["differed"]
        rows.append((kind, tally["agreed"], tally["differed"], not_judged or ("" if compared else NONE_SEEN)))
    return rows


def html(report: Mapping[str, Any], *, refresh: int = 0) -> str:
    """Return the report as a self-contained page. A browser reloads it every `refresh` seconds, 0 for
    never.
    """
    reload = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    name = escape(report["node"] or report["kubelet"])
    good = "bad" if report["differed"] else "good"
    faults = [
        (source, str(fault["times"]), when(fault["last"]), fault["text"])
        for source, fault in report["faults"].items()
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{reload}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Shadow of {name}</title><style>{_STYLE}</style></head><body><h1>Shadow of {name}</h1>"
        f'<p class="{good}"><strong>{escape(verdict(report))}</strong></p>'
        f"<p>{report['pods']} pods; {report['observations']} observations since {when(report['began'])}, "
        f"of which {report['skippedObservations']} were skipped; "
        f"{report['kubeletRestarts']} restarts of the kubelet. "
        f"Read at {when(report['now'])} from <code>{escape(report['kubelet'])}</code>.</p>"
        + _table(("Decision", "Agreed", "Differed", "Not judged"), kind_rows(report), numbers=(1, 2))
        + "<h2>Differences</h2>"
        + _differences(report)
        + _section("What the next configuration would change", next_rows(report), NEXT_HEADS)
        + _section("Sources that could not be read", faults, ("Source", "Times", "Last", "Why"))
        + "</body></html>"
    )


NEXT_HEADS: Final = ("When", "Decision", "About", "Now", "Next", "Why")


def next_rows(report: Mapping[str, Any]) -> Sequence[tuple[str, ...]]:
    """Return the decisions that a second configuration would have changed, the latest first."""
    return [
        (when(one["at"]), one["decision"], one["subject"], one["now"], one["next"], one["why"])
        for one in reversed(report.get("next", {}).get("changes", ()))
    ][:MAX_SHOWN]


def _differences(report: Mapping[str, Any]) -> str:
    if not report["differences"]:
        return "<p>None.</p>"
    rows = [
        (
            one["kind"],
            one["subject"],
            f"{one['ours']} ({one['ourReason']})",
            f"{one['kubelets']} ({one['kubeletsReason']})",
            f"{one['times']} ×, {when(one['first'])} to {'now' if one['stands'] else when(one['last'])}",
        )
        for one in reversed(report["differences"][-MAX_SHOWN:])
    ]
    return _table(("Decision", "About", "By these rules", "By the kubelet", "Seen"), rows)


def _section(title: str, rows: Sequence[Sequence[Any]], heads: Sequence[str]) -> str:
    return f"<h2>{title}</h2>{_table(heads, rows)}" if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int] = ()) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=n' if column in numbers else ''}>{escape(str(cell))}</td>"
            for column, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def when(at: float) -> str:
    """Return a Unix time as text, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h" if hours else "", f"{minutes} min" if minutes else "", f"{rest} s" if rest else ""]
    return " ".join(part for part in parts if part) or "0 s"


def register(registry: Registry, ledger: AgreementLedger) -> None:
    """Expose the counts of a ledger as metrics of `registry`."""
    registry.collected(
        "counter",
        "kubengine_shadow_decisions_total",
        "Decisions of the kubelet that were taken a second time, by kind and by result.",
        ["kind", "result"],
        lambda: [
            ((kind, result), float(count))
            for kind, tally in ledger.tallies.items()
            for result, count in (
                ("agreed", tally.agreed),
                ("differed", tally.differed),
                ("not_judged", sum(tally.not_judged.values())),
            )
        ],
    )
    registry.collected(
        "gauge",
        "kubengine_shadow_differences",
        "Differences that stand now, by kind.",
        ["kind"],
        lambda: [
            ((kind,), float(sum(d.stands and d.comparison.kind == kind for d in ledger.differences())))
            for kind in ledger.tallies
        ],
    )
