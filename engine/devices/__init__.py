"""Devices: plugins, who gets which device, NUMA alignment, the checkpoint and the pod-resources API.

Pure files decide (`inventory`, `selection`, `topology`, `topology_search`, `state`, `checkpoint`,
`run_options`); the others act: `registration`, `plugin_watcher`, `endpoint`, `checkpoint_file`,
`pod_resources`, and `manager`, which puts them together. May touch gRPC sockets, the device plugin,
plugin registry and pod-resources directories, `engine.api`, `engine._fast`, `engine.metrics` and
`engine.wire`. Nothing is re-exported: the planner reads the pure files without loading gRPC, and nodes
import `engine.devices.manager`.
"""
