"""Creates the operations on pods, each from the parts of the node that it uses."""

from __future__ import annotations

from engine.node.sync.container_config import ContainerConfigBuilder
from engine.node.sync.hooks import HookRunner
from engine.node.sync.resizing import PodResizer
from engine.node.sync.services import Services
from engine.node.sync.starting import ContainerStarter, SandboxStarter
from engine.node.sync.status_publisher import StatusPublisher
from engine.node.sync.stopping import PodStopper


class PodOperations:
    """Hold the operations on the pods of one node, which all workers share. They keep no state of a pod."""

    def __init__(self, services: Services) -> None:
        context, runtime, addresses = services.context, services.runtime, services.addresses
        allocations, admission, metrics = services.allocations, services.admission, services.metrics
        plane = services.control_plane
        hooks = HookRunner(runtime.client, addresses, context.recorder)
        configs = ContainerConfigBuilder(
            context, runtime, addresses, services.volumes, allocations, plane.objects, admission.allocatable
        )
        self.stopper = PodStopper(context, runtime, hooks)
        self.sandboxes = SandboxStarter(context, runtime, addresses, allocations, plane.objects, metrics)
        self.containers = ContainerStarter(
            context, runtime, services.images, allocations, configs, self.stopper, hooks, metrics
        )
        self.resizer = PodResizer(context, runtime, allocations, admission, self.stopper, metrics.resizes)
        self.statuses = StatusPublisher(
            context,
            runtime,
            addresses,
            allocations,
            admission,
            services.probes,
            services.pod_changed,
            metrics,
        )
