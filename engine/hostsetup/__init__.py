"""Sets up the host as a kubelet does: kernel tunables, iptables chains, the agent's limits and cgroups, and
the watch for system OOM kills. Only a node agent on the machine's own runtime sets up its host.
"""
