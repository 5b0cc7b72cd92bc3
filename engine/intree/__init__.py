"""Mounts NFS and iSCSI volumes with the machine's commands, as the in-tree plugins of a kubelet do.

Pure modules: `iscsi_disk` (a LUN, its paths and its record on disk). Acting modules: `commands` (running a
command, and naming the package that has a missing one), `nfs`, `scsi` (sysfs and /dev), `iscsiadm`
(sessions), `iscsi` (attach, mount for all pods, mount for one pod, and the reverse). The package touches the
node's root directory, sysfs and mounts; it imports `engine.api` and `engine.host`. Directories and
files have the kubelet's layout, so that either agent takes over the other's volumes.
"""
