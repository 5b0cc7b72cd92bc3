"""A pod's directory under the node's root: its volumes, the files made for its containers, their removal.

`<root>/pods/<uid>` is laid out as a kubelet does. What containers can reach in it goes through
`engine.host.beneath`, `engine.host.trees` and `engine.host.published`, never by path.
"""

from engine.node.volumes.keeper import VolumeKeeper
from engine.node.volumes.pod_volumes import PodVolumes
from engine.node.volumes.refusals import VolumeRefused

__all__ = ["PodVolumes", "VolumeKeeper", "VolumeRefused"]
