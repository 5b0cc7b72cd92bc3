"""A container runtime of our own, for machines that have none.

`hollow` and `embedded` are two runtimes that share the
CRI's rules (`service`), its states (`records`) and its gRPC server (`server`), and differ in what they
do (`backend`): nothing, or real processes. `shim` is what runs beside each container; it imports only
the standard library. Touches gRPC, netlink, cgroups and processes; imports `api`, `metrics`, `host`,
`cri`, `wire`; nothing of the agent imports it.

This file imports nothing, so that the shim stays small: name the module that you need.
"""
