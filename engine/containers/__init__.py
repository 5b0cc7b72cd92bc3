"""Container garbage collection: dead containers, sandboxes and their logs.

`selection` decides (pure), `manager` lists and removes through the runtime and deletes log directories
and dead log links. May touch `engine.api`, `metrics`, `cri.client` and the pod log directories.
"""

from engine.containers.manager import ContainerGC, ContainerGCReport
from engine.containers.selection import ContainerGCPolicy

__all__ = ["ContainerGC", "ContainerGCPolicy", "ContainerGCReport"]
