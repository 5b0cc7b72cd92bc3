"""Creates and removes a pod's directory below the node's root: its volumes and the files of its containers.

`<root>/pods/<uid>` has the kubelet's layout. Files that containers can reach are accessed through
`engine.host.safe_open`, `engine.host.trees` and `engine.host.atomic_writer`, never by path.
"""

from engine.node.volumes.pod_volumes import PodVolumes
from engine.node.volumes.refusals import VolumeRefused
from engine.node.volumes.volume_manager import VolumeHost, VolumeManager

__all__ = ["PodVolumes", "VolumeHost", "VolumeManager", "VolumeRefused"]
