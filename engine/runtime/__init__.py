"""Provide a built-in container runtime, for machines without one.

`hollow` and `embedded` are two runtimes that share the CRI's rules (`service`), its states (`records`) and
its gRPC server (`server`), and differ in what they do (`backend`): nothing, or real processes. `shim` runs
next to each container and imports only the standard library. Touches gRPC, netlink, cgroups and processes;
imports `api`, `metrics`, `host`, `cri`, `wire`; the agent does not import it.

This file imports nothing, so that the shim stays small: import the module that you need.
"""
