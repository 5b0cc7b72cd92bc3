"""The node agent: pod sources, workers, status and recovery, and the façade `Node` that joins the components.

Pure files decide (`actions`, `status`, `static_pods`, `environment`, `cri_config`); the
others act on the runtime, cgroups and the file system. May import every room but `server`, `plan`, `cli`.
"""

from engine.node.node import Node

__all__ = ["Node"]
