"""Mounts NFS, iSCSI and Fibre Channel volumes with the machine's commands, as a kubelet's in-tree plugins do.

Pure modules: `iscsi_disk` and `fc_disk` (a disk, its names and directories; iSCSI's record on disk). Acting
modules: `commands` (runs a command, and names the package of a missing one), `nfs`, `scsi` (sysfs and /dev),
`iscsiadm` (sessions), `disk_volumes` (mount for all pods, mount for one pod, and the reverse), `iscsi` and
`fc` (attach and detach). The package touches the node's root directory, sysfs and mounts; it imports
`engine.api` and `engine.host`. Directories and files have the kubelet's layout, so that either agent takes
over the other's volumes.
"""
