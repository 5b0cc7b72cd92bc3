"""Container garbage collection: dead containers, sandboxes and their logs.

`selection` decides (pure), `manager` lists and removes through the runtime and deletes log directories
and dead log links. Importing this package loads what decides. May touch `engine.api`, `metrics`,
`cri.client` and the pod log directories.
"""

from engine.containers.selection import ContainerGCPolicy, containers_to_remove, sandboxes_to_remove

__all__ = ["ContainerGCPolicy", "containers_to_remove", "sandboxes_to_remove"]
