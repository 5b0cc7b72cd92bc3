"""A pod's directory under the node's root: its volumes, the files made for its containers, their removal.

`<root>/pods/<uid>` is laid out as a kubelet does. What containers can reach in it goes through
`engine.host.safe_open`, `engine.host.trees` and `engine.host.atomic_writer`, never by path.
"""

from engine.node.volumes.pod_volumes import PodVolumes
from engine.node.volumes.refusals import VolumeRefused
from engine.node.volumes.volume_manager import VolumeManager

__all__ = ["PodVolumes", "VolumeManager", "VolumeRefused"]
