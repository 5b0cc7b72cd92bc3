"""Makes, checks, mounts and grows file systems; attaches files as disks; reads and sets project quotas."""
