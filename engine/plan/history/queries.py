"""The PromQL that a history is read with, and the units of its measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NODE_LABELS: Final = ("node", "kubernetes_io_hostname", "instance")
"""Labels that name a series' node, best first: which one there is depends on the scrape configuration."""
REPLICA_LABELS: Final = ("job", "prometheus_replica", "replica", "cluster")
"""Labels in which copies of one container's series differ."""
_CONTAINERS: Final = 'container!="",container!="POD"'
_ROOT: Final = 'id="/"'
_PODS: Final = 'id=~"/kubepods|/kubepods.slice"'
_SYSTEM: Final = 'id="/system.slice"'
_MILLION: Final = 1_000_000


@dataclass(frozen=True)
class Measure:
    """Describe one measure: `function` of `metric` over a step, in `unit` after multiplying by `scale`.

    `required` measures make a history useless if they are missing everywhere. The absence of `optional` ones
    is not reported.
    """

    name: str
    metric: str
    function: str
    selector: str
    unit: str
    scale: float = 1.0
    required: bool = False
    optional: bool = False

    @property
    def of_containers(self) -> bool:
        return self.selector == _CONTAINERS

    def query(self, window: int, matchers: str) -> str:
        """Return the expression; `window` in seconds, `matchers` as `cluster="a",…` or empty."""
        selector = f"{self.selector},{matchers}" if matchers else self.selector
        labels = ("namespace", "pod", "container") if self.of_containers else ()
        by = ", ".join((*labels, *NODE_LABELS, *REPLICA_LABELS))
        metric = f"{self.metric}{{{selector}}}"
        found = f"{self.function}({metric}[{window}s])"
        if self.function == "increase":
            # A counter that rises between the last scrape of a window and the first one of the next window
            # rises in neither of them.
            found = f"({found} > 0) or clamp_min({metric} - {metric} offset {window}s, 0)"
        return f"max by ({by}) ({found})"

    def count(self, matchers: str) -> str:
        """Return the expression that counts the series."""
        selector = f"{self.selector},{matchers}" if matchers else self.selector
        return f"count({self.metric}{{{selector}}})"


_MEMORY: Final = "container_memory_working_set_bytes"
_CPU: Final = "container_cpu_usage_seconds_total"
_STALL: Final = "container_pressure_{}_waiting_seconds_total"
MEASURES: Final = (
    Measure("memory", _MEMORY, "max_over_time", _CONTAINERS, "bytes", required=True),
    Measure("cpu", _CPU, "rate", _CONTAINERS, "micro-CPU", _MILLION, required=True),
    Measure("ooms", "container_oom_events_total", "increase", _CONTAINERS, "times"),
    Measure("node-memory", _MEMORY, "max_over_time", _ROOT, "bytes"),
    Measure("node-cpu", _CPU, "rate", _ROOT, "micro-CPU", _MILLION),
    Measure("pods-memory", _MEMORY, "max_over_time", _PODS, "bytes", optional=True),
    Measure("pods-cpu", _CPU, "rate", _PODS, "micro-CPU", _MILLION, optional=True),
    Measure("system-memory", _MEMORY, "max_over_time", _SYSTEM, "bytes", optional=True),
    Measure("system-cpu", _CPU, "rate", _SYSTEM, "micro-CPU", _MILLION, optional=True),
    Measure("node-memory-stall", _STALL.format("memory"), "rate", _ROOT, "millionths", _MILLION),
    Measure("node-cpu-stall", _STALL.format("cpu"), "rate", _ROOT, "millionths", _MILLION),
)
"""What is read: use of containers, kills for lack of memory, use and stall (PSI) of nodes, and the use of all
pods of a node and of its system services.
"""
