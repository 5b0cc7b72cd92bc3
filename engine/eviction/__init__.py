"""Eviction under pressure: signals, thresholds, the sequence of decisions, and the manager that acts.

`thresholds`, `pressure`, `layout`, `usage`, `local_storage`, `message` and `admission` decide (pure);
`readings`, `cgroup_usage`, `measure` and `notifier` (by `usage_events` or `pressure_events`) look at
cgroups, file systems and the runtime; `manager` puts them together. May touch `engine.api`, `tables`,
`_fast`, `metrics`, `cri.client`, `engine.images` and `engine.containers`. Importing this package loads what
decides; who acts is imported from its module.
"""

from engine.eviction.layout import Layout, reclaims
from engine.eviction.message import eviction_message
from engine.eviction.pressure import Pressure, PressureTracker
from engine.eviction.signals import SignalObservation
from engine.eviction.thresholds import Threshold, parse_thresholds, thresholds_from_config
from engine.eviction.usage import PodUsage, rank

__all__ = [
    "Layout",
    "PodUsage",
    "Pressure",
    "PressureTracker",
    "SignalObservation",
    "Threshold",
    "eviction_message",
    "parse_thresholds",
    "rank",
    "reclaims",
    "thresholds_from_config",
]
