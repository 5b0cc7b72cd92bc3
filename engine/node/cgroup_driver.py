"""Which cgroup driver the node uses: the runtime's answer comes before the configuration.

Both must place a pod's cgroups alike, or the runtime refuses every sandbox. Source: kubelet v1.36,
KEP-4033 (gate KubeletCgroupDriverFromCRI, generally available).
"""

from __future__ import annotations

import logging

from engine.api.errors import Refused
from engine.cri.client import RuntimeClient
from engine.metrics import Registry
from engine.node.runtime_view.wait_for_runtime import wait_for_runtime
from engine.wire import cri_v1_pb2 as cri

DRIVERS = {cri.SYSTEMD: "systemd", cri.CGROUPFS: "cgroupfs"}
LAST_VERSION = "1.37.0"
"""The kubelet's version that drops runtimes without RuntimeConfig."""

log = logging.getLogger("kubengine.node")


async def cgroup_driver(runtime: RuntimeClient, configured: str, registry: Registry) -> str:
    """Return the driver that the runtime reports, or `configured` if it reports none.

    Raises `Unavailable` where it does not answer, `Refused` for a driver that is not known.
    """
    losing_support = registry.counter(
        "kubelet_cri_losing_support",
        "The first kubelet version that will not support this runtime, because the runtime lacks a call.",
        ["version"],
    )
    answer = await wait_for_runtime(runtime.runtime_config)
    if answer is None:
        losing_support.inc(LAST_VERSION)
        log.info(
            "%s does not implement RuntimeConfig, as containerd does from 2.0; using the configuration's "
            "cgroupDriver: %s",
            runtime.endpoint,
            configured,
        )
        return configured
    if not answer.HasField("linux"):
        return configured
    driver = DRIVERS.get(answer.linux.cgroup_driver)
    if driver is None:
        raise Refused(
            f"names an unknown cgroup driver: {answer.linux.cgroup_driver}", subject=runtime.endpoint
        )
    if driver != configured:
        log.info("using cgroupDriver %s of %s instead of %s", driver, runtime.endpoint, configured)
    return driver
