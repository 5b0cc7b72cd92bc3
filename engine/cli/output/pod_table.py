"""Show pods as a table: one row each, with the actual values of its cgroup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from engine.cli.output.amounts import show_bytes

# cgroup v1 shows "no limit" as the largest page-aligned number of 63 bits.
_UNLIMITED = 1 << 60
_PHASE_STYLE = {"Running": "green", "Succeeded": "green", "Pending": "yellow", "Failed": "red"}


def pod_rows(pods: Iterable[Mapping[str, Any]], groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Build rows from a PodList's items and the `groups` that the agent's cgroups component describes.

    `cpuShares`, `cpuQuota` (cores) and `memoryLimit` (bytes) are None where there is no group or no limit.
    """
    files = {group["uid"]: group["files"] for group in groups if group.get("uid")}
    return [_row(pod, files.get(pod["metadata"].get("uid", ""), {})) for pod in pods]


def _row(pod: Mapping[str, Any], files: Mapping[str, Mapping[str, str | None]]) -> dict[str, Any]:
    status = pod.get("status", {})
    regular = status.get("containerStatuses") or []
    init = status.get("initContainerStatuses") or []
    sidecars = {
        c["name"] for c in pod["spec"].get("initContainers", ()) if c.get("restartPolicy") == "Always"
    }
    lasting = [*regular, *(container for container in init if container["name"] in sidecars)]
    actual = {name: text.get("actual") for name, text in files.items()}
    return {
        "namespace": pod["metadata"].get("namespace", ""),
        "name": pod["metadata"]["name"],
        "qosClass": status.get("qosClass", ""),
        "phase": status.get("phase", "Pending"),
        "reason": status.get("reason") or _waiting_reason([*init, *regular]),
        "ready": sum(container.get("ready", False) for container in lasting),
        "containers": len(pod["spec"]["containers"]) + len(sidecars),
        "restarts": sum(container.get("restartCount", 0) for container in [*init, *regular]),
        "startTime": status.get("startTime"),
        "podIP": status.get("podIP", ""),
        "cpuShares": _number(actual.get("cpu.shares") or actual.get("cpu.weight")),
        "cpuQuota": _cores(actual),
        "memoryLimit": _limit(actual.get("memory.limit_in_bytes") or actual.get("memory.max")),
    }


def _waiting_reason(containers: Iterable[Mapping[str, Any]]) -> str:
    for container in containers:
        reason = ((container.get("state") or {}).get("waiting") or {}).get("reason", "")
        # These two only say that the pod is starting, which the phase says already.
        if reason not in ("", "PodInitializing", "ContainerCreating"):
            return str(reason)
    return ""


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None


def _limit(text: str | None) -> int | None:
    value = _number(text)
    return value if value is not None and 0 <= value < _UNLIMITED else None


def _cores(files: Mapping[str, str | None]) -> float | None:
    quota, period = files.get("cpu.cfs_quota_us"), files.get("cpu.cfs_period_us")
    if "cpu.max" in files:
        quota, _, period = (files["cpu.max"] or "max").partition(" ")
    amount, every = _number(quota), _number(period)
    return amount / every if amount is not None and every and amount > 0 else None


def pod_table(rows: Iterable[Mapping[str, Any]], *, now: float, title: str | None = None) -> Table:
    """Build a table of `pod_rows`. `now` is a Unix time, for the age column."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name, right in (
        ("POD", False), ("QOS", False), ("PHASE", False), ("READY", True), ("RESTARTS", True), ("AGE", True),
        ("CPU SHARES", True), ("CPU LIMIT", True), ("MEMORY LIMIT", True),
    ):  # fmt: skip
        table.add_column(name, justify="right" if right else "left", no_wrap=not right)
    for row in rows:
        phase = f"{row['phase']} ({row['reason']})" if row["reason"] else row["phase"]
        table.add_row(
            f"{row['namespace']}/{row['name']}",
            row["qosClass"],
            Text(phase, style=_PHASE_STYLE.get(row["phase"], "")),
            f"{row['ready']}/{row['containers']}",
            str(row["restarts"]),
            _age(row["startTime"], now),
            "-" if row["cpuShares"] is None else str(row["cpuShares"]),
            "-" if row["cpuQuota"] is None else f"{row['cpuQuota']:g}",
            show_bytes(row["memoryLimit"]),
        )
    return table


def _age(start: str | None, now: float) -> str:
    if not start:
        return "-"
    began = datetime.fromisoformat(start)
    seconds = max(0, int(now - began.replace(tzinfo=began.tzinfo or UTC).timestamp()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
