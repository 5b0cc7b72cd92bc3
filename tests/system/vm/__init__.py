"""A Debian machine under QEMU with systemd as process 1 and cgroup v2, and what must hold on it.

`python -m tests.system.vm --help` starts one by hand.
"""
