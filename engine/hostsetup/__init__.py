"""The host as a kubelet leaves it: kernel tunables, iptables chains, the agent's own limits and cgroups, and
the watch for system OOM kills. Only a node agent that runs on the machine's own runtime sets a host up."""
