"""Write the results as a table, JSON and one HTML page with plots."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median

from rich.table import Table

from engine.bench.node import NodeBenchResult
from engine.bench.scale import ScaleRow

SHOWN: dict[str, tuple[str, ...]] = {
    "start": ("wall_s", "cpu_s", "rss_mb"),
    "pods": (
        "wall_s",
        "start_p50_s",
        "start_p90_s",
        "start_p99_s",
        "cpu_ms_per_pod",
        "runtime_calls",
        "system_calls",
        "instructions",
        "rss_mb",
    ),
    "idle": (
        "cpu_ms_per_pod_per_s",
        "context_switches",
        "system_calls",
        "instructions",
        "runtime_calls",
        "rss_mb",
        "pss_mb",
    ),
    "statistics": (
        "cadvisor_cpu_ms",
        "cadvisor_kb",
        "summary_cpu_ms",
        "summary_kb",
        "resource_cpu_ms",
        "resource_kb",
        "between_cpu_ms_per_s",
    ),
    "probing": (
        "http_per_s",
        "tcp_per_s",
        "exec_per_s",
        "cpu_us_per_probe",
        "context_switches",
        "system_calls",
        "instructions",
        "rss_mb",
    ),
    "churn": ("start_p50_s", "start_p99_s", "cpu_ms_per_pod"),
    "refill": ("drained_s", "refilled_s", "cpu_ms_per_pod"),
    "devices": ("wall_s", "start_p50_s", "start_p99_s", "cpu_ms_per_pod"),
    "preemption": ("preempt_p50_s", "preempt_p99_s", "cpu_s"),
    "image-gc": ("images", "wall_s", "removing_s", "cpu_ms_per_image"),
    "restart": ("stop_s", "healthz_s", "wall_s", "cpu_s", "restarts_caused"),
    "api": (
        "node_ready_s",
        "wall_s",
        "ready_p50_s",
        "ready_p99_s",
        "pods_per_s",
        "cpu_ms_per_pod",
        "requests_per_pod",
        "rss_mb",
        "idle_cpu_ms_per_pod_per_s",
        "idle_requests_per_min",
        "deleted_s",
        "deletion_cpu_ms_per_pod",
        "deletion_requests_per_pod",
    ),
}
SCALE_HEADS = (
    "pods",
    "all Ready after",
    "CPU for it",
    "steady CPU",
    "per pod",
    "RSS",
    "probes",
    "late probes",
    "worst lateness",
    "/healthz p50, p99",
)
NOT_EVERYWHERE = ("system_calls",)
"""Shown as a dash if the machine does not count them; a note says why."""


def rows(result: NodeBenchResult) -> Iterator[tuple[str, str, dict[str, list[float]]]]:
    """Return (phase, figure, values of each repetition by agent) in reading order."""
    for phase, names in SHOWN.items():
        for name in names:
            values = {
                label: [figures[name] for figures in phases.get(phase, []) if name in figures]
                for label, phases in result.runs.items()
            }
            measured = any(phase in phases for phases in result.runs.values())
            if any(values.values()) or (measured and name in NOT_EVERYWHERE):
                yield phase, name, values


def ratio_table(result: NodeBenchResult) -> Table:
    """Return medians with their spread, and the ratio of the engine's figure to the kubelet's."""
    labels = list(result.runs)
    compare = "kubelet" in labels and "engine" in labels
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "PHASE",
        "FIGURE",
        *(label.upper() for label in labels),
        *(["ENGINE/KUBELET"] if compare else []),
    ):
        table.add_column(name, justify="left" if name in ("PHASE", "FIGURE") else "right", no_wrap=True)
    last = ""
    for phase, name, values in rows(result):
        cells = [spread(values[label]) for label in labels]
        if compare:
            cells.append(_ratio(values["engine"], values["kubelet"]))
        table.add_row("" if phase == last else phase, name, *cells)
        last = phase
    return table


def markdown_table(result: NodeBenchResult) -> str:
    """Return the same as `ratio_table`, in Markdown."""
    labels = list(result.runs)
    compare = "kubelet" in labels and "engine" in labels
    heads = ["phase", "figure", *labels, *(["engine / kubelet"] if compare else [])]
    lines = [line(heads), "|---|---|" + "---:|" * (len(heads) - 2)]
    last = ""
    for phase, name, values in rows(result):
        cells = ["" if phase == last else phase, name, *(spread(values[label]) for label in labels)]
        if compare:
            cells.append(_ratio(values["engine"], values["kubelet"]))
        lines.append(line(cells))
        last = phase
    return "\n".join(lines)


def scale_table(measured: Sequence[ScaleRow]) -> str:
    """Return a Markdown table, a line for each size."""
    lines = [line(SCALE_HEADS), "|" + "---:|" * len(SCALE_HEADS)]
    for row in measured:
        cells = [
            f"{row.pods:,}",
            f"{row.ready_s:.1f} s",
            f"{row.ready_cpu_s:.1f} s",
            f"{row.cpu_percent:.2g} % of a core",
            f"{row.cpu_us_per_pod_per_s:.1f} µs/s",
            f"{row.rss_mb:.0f} MB",
            f"{row.probes:,}",
            f"{row.late_probes:,}",
            f"{row.worst_late_s * 1e3:.0f} ms",
            f"{row.healthz_p50_ms:.1f}, {row.healthz_p99_ms:.1f} ms",
        ]
        lines.append(line(cells))
    return "\n".join(lines)


def line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Return the median, with the range in brackets if there are several values."""
    if not values:
        return "–"
    middle, less = f"{median(values):.{digits}g}", digits - 1
    return middle if len(values) == 1 else f"{middle} ({min(values):.{less}g} to {max(values):.{less}g})"


def _ratio(ours: list[float], theirs: list[float]) -> str:
    return spread([a / b for a, b in zip(ours, theirs, strict=False) if b], 3)


def json_report(result: NodeBenchResult) -> str:
    return json.dumps(asdict(result), indent=1) + "\n"


def html_report(result: NodeBenchResult) -> str:
    """Return one page without external resources; a bar for each repetition."""
    parts = [
        "<!doctype html><meta charset=utf-8><title>kubengine bench node</title><style>"
        "body{font:14px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "h2{margin:1.5em 0 .3em}td,th{padding:.1em .8em .1em 0;text-align:left}svg{display:block}"
        ".engine{fill:#2a6f97}.kubelet{fill:#bc6c25}</style><h1>kubengine bench node</h1>"
    ]
    about = {**result.versions, **result.machine, **{k: str(v) for k, v in result.options.items()}}
    if not result.complete:
        parts.append("<p><strong>The run was interrupted; this is what it had measured.</strong>")
    parts.append("<table>" + "".join(f"<tr><th>{_e(k)}<td>{_e(v)}" for k, v in about.items()) + "</table>")
    last = ""
    for phase, name, values in rows(result):
        if phase != last:
            parts.append(f"<h2>{_e(phase)}</h2>")
            last = phase
        parts.append(f"<p>{_e(name)}" + _bars(values))
    parts.append("<h2>Notes</h2><ul>" + "".join(f"<li>{_e(note)}" for note in result.notes) + "</ul>")
    return "\n".join(parts)


def _bars(values: dict[str, list[float]]) -> str:
    top = max((abs(v) for row in values.values() for v in row), default=0) or 1
    lines, y = [], 0
    for label, row in values.items():
        for index, value in enumerate(row, 1):
            width = max(1, round(400 * abs(value) / top))
            lines.append(
                f'<rect class="{_e(label)}" x="0" y="{y}" width="{width}" height="12"/>'
                f'<text x="{width + 6}" y="{y + 11}" font-size="11">{value:.4g} {_e(label)} {index}</text>'
            )
            y += 16
    return f'<svg width="640" height="{y}" role="img">{"".join(lines)}</svg>'


def _e(text: str) -> str:
    return html.escape(str(text))
