"""Reports what else fills the image file system when removing images is not enough
(kubernetes/kubernetes#71869).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine.api.errors import KubengineError
from engine.cri.client import RuntimeClient
from engine.host.trees import disk_usage
from engine.images.filesystem import RuntimeFilesystems, same_device
from engine.images.report import REMOVED, ImageGCReport

MEASURE_TIMEOUT = 30.0


async def what_else_fills(
    where: RuntimeFilesystems, report: ImageGCReport, runtime: RuntimeClient, pod_logs_dir: Path
) -> dict[str, int]:
    """Return bytes by holder: remaining images, writable layers, pod logs on the same file system, and the
    rest.

    What is unknown falls to the rest.
    """
    used = (report.capacity or 0) - (report.available or 0) - report.freed
    found = {"images that remain": sum(v.size for v in report.images if v.verdict != REMOVED)}
    try:
        stats = await runtime.list_container_stats()
        found["writable layers of containers"] = sum(s.writable_layer.used_bytes.value for s in stats)
    except KubengineError:
        pass
    try:
        if same_device(where.images, pod_logs_dir):
            async with asyncio.timeout(MEASURE_TIMEOUT):
                found["pod logs"] = (await asyncio.to_thread(disk_usage, pod_logs_dir))[0]
    except (OSError, TimeoutError):
        pass
    found["files that do not belong to the runtime"] = max(used - sum(found.values()), 0)
    return found
