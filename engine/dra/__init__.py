"""Dynamic resource allocation: claims prepared by drivers, kept, and given back.

Pure files decide: `claims` (which claims a pod uses and whether it may), `table` (what is prepared),
`answers` (what a driver said, held to what it was asked), `health` and `checkpoint` (the kubelet's files).
The others act: `drivers` (registration, connections, slices of drivers that vanish),
`driver_client` (calls to one, and the protocol's messages) and `manager`, which puts them together. May touch
drivers' sockets and the two state files; imports `engine.api`, `engine.metrics`, `engine.host`,
`engine.plugins`, `engine.transport` and `engine.wire`. Importing this package loads nothing.
"""
