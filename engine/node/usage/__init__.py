"""What the node and its pods use: their cgroups and network devices, read when somebody asks.

`group` reads one cgroup, `network` one network namespace; `sampler` reads all of them once for whoever asks
at the same time; `shown` has them in the kubelet's shape. Nothing runs here while nobody asks.
"""
