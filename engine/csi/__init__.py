"""CSI: drivers of storage that register on this node, and their volumes under the node's root directory.

Pure files decide: `places` (paths and names), `volume` (what is wanted of a driver, and what follows from the
cluster's CSIDriver). The others act: `drivers` (who is registered), `driver_client` (calls to one, and the
protocol's messages), `volume_data` (what is kept beside a mount), `file_systems` and `devices` (what is on
disk of both kinds, as `on_disk` has it), `mounting` (stage, publish and their ends). May touch drivers'
sockets and the node's directory; imports `engine.api`, `engine.metrics`, `engine.host`, `engine.plugins`,
`engine.transport` and `engine.wire`. Directories and files are a kubelet's.
"""
