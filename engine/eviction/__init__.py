"""Evicts pods under pressure: signals, thresholds, the sequence of decisions, and the manager that acts.

Pure modules: `thresholds`, `pressure`, `layout`, `usage`, `local_storage`, `message` and `admission`. Acting
modules: `readings`, `measure` and `notifier` (with `usage_events` or `pressure_events`) read
cgroups, file systems and the runtime; `manager` combines them. The package may import `engine.api`,
`tables`, `_fast`, `metrics`, `cri.client`, `engine.images` and `engine.containers`. Importing it loads pure
modules only.
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
