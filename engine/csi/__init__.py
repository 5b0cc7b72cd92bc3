"""Manages CSI drivers that register on this node, and their volumes below the node's root directory.

Pure modules: `paths` (directories and names), `volume` (the volume that a pod requests, with the rules of its
CSIDriver), `expansion` and `migration`. Acting modules: `drivers` (registration), `driver_client` (calls),
`volume_data` (records next to a mount), `file_systems` and `devices` (the content on disk of both kinds, as
`on_disk` states it), and `mounting` (stage, publish and the reverse). The package touches drivers' sockets
and the node's directory; it imports `engine.api`, `engine.metrics`, `engine.host`, `engine.plugins`,
`engine.transport` and `engine.wire`. Directories and files have the kubelet's layout.
"""
