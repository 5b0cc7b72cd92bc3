"""What runs beside every container and outlives the runtime: small, single-threaded, standard library only.

`spawner` is started by the runtime with a bare interpreter and forks one small process for each request:
`sandbox` holds a pod's namespaces, `container` starts a container and stays to copy its output and to
record how it ended, `command` runs one command in a container. `rootfs`, `network`, `identity`, `logs`
and `cgroup` are their parts; `linux` is the kernel's interface that Python lacks. A process reports over
a unix socket of the runtime and waits for its go before anything irrevocable happens, so that no
process exists that the runtime has not written down.
"""
