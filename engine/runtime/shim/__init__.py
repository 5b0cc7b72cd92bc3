"""Run next to every container and outlive the runtime: small, single-threaded, standard library only.

The runtime starts `spawner` with a bare interpreter, and it forks one small process for each request:
`sandbox` holds a pod's namespaces, `container` starts a container and stays to copy its output and to record
how it ended, `command` runs one command in a container. `rootfs`, `network`, `identity`, `logs` and `cgroup`
are their parts; `linux` wraps kernel interfaces that Python lacks. A process reports over a unix socket of
the runtime and waits for its permission before it does anything irrevocable, so that every process is
recorded by the runtime.
"""
