"""Dynamic resource allocation: drivers prepare and unprepare claims, which are recorded.

Pure files decide: `claims` (which claims a pod uses and whether it may), `table` (what is prepared),
`answers` (what a driver said, held to what it was asked), `numa_nodes` (where claimed devices are, and
hints), `health` and `checkpoint` (the kubelet's files). The others act: `drivers` (registration,
connections, slices of drivers that vanish), `driver_client` (calls to one, and the protocol's messages),
`locator` (slices and sysfs lead to NUMA nodes) and `manager`, which puts them together. May touch drivers'
sockets, the two state files and sysfs; imports `engine.api`, `engine.metrics`, `engine.host`,
`engine.plugins`, `engine.transport`, `engine.topologymanager` and `engine.wire`. Importing this package
loads nothing.
"""
