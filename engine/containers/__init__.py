"""Collects dead containers, sandboxes and their logs, and spaces restarts (`backoff`).

`selection` decides (pure); `manager` lists and removes through the runtime, and deletes log directories and
dangling log links. Importing this package loads pure modules only. It may import `engine.api`, `metrics` and
`cri.client`, and touches the pod log directories.
"""

from engine.containers.selection import (
    ContainerGCPolicy,
    DeadContainer,
    DeadSandbox,
    containers_to_remove,
    sandboxes_to_remove,
)

__all__ = [
    "ContainerGCPolicy",
    "DeadContainer",
    "DeadSandbox",
    "containers_to_remove",
    "sandboxes_to_remove",
]
