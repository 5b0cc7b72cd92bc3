"""Measure a node agent under load from outside, and compare it with a kubelet if there is one.

`node` runs agents in turn through the phases of `phases`, on parts of its own (`parts`: a hollow runtime, a
probe target, private directories and cgroups); `scale` measures one agent at growing pod counts; `report`
writes the results. Touches processes, cgroups and loopback; imports `api` and `wire`, and starts the engine
only as a command, as a user would.
"""

from engine.bench.node import BenchOptions, NodeBench
from engine.bench.report import html_report, ratio_table
from engine.bench.scale import ScaleOptions, run_scale

__all__ = ["BenchOptions", "NodeBench", "ScaleOptions", "html_report", "ratio_table", "run_scale"]
