"""Eviction under pressure: signals, thresholds, the sequence of decisions, and the manager that acts.

`thresholds`, `pressure`, `layout`, `usage`, `local_storage`, `message` and `admission` decide (pure);
`readings`, `cgroup_usage`, `measure` and `notifier` (by `usage_events` or `pressure_events`) look at
cgroups, file systems and the runtime; `manager` puts them together. May touch `engine.api`, `tables`,
`_fast`, `metrics`, `cri.client`, `engine.images` and `engine.containers`.
"""

from engine.eviction.manager import EvictionManager
from engine.eviction.readings import NodeView, SignalReader
from engine.eviction.thresholds import Threshold, parse_thresholds, thresholds_from_config

__all__ = [
    "EvictionManager",
    "NodeView",
    "SignalReader",
    "Threshold",
    "parse_thresholds",
    "thresholds_from_config",
]
