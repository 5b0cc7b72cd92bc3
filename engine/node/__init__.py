"""Runs the node agent: pod sources, workers, status and recovery, behind the façade `Node`.

Pure modules decide (`actions`, `status`, `static_pods`, `environment`, `cri_config`); the others act on the
runtime, cgroups and the file system. The package may import every other one but `server`, `plan` and `cli`.
"""

from engine.node.node import NodeAgent as Node

__all__ = ["Node"]
