"""Passes the pod CIDRs of the node to the runtime (kubelet v1.36: `updatePodCIDR`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from engine.api.errors import KubengineError
from engine.cri.client import RuntimeClient, Unimplemented
from engine.host.tasks import Tasks

RETRY_SECONDS: Final = 10.0

log = logging.getLogger("kubengine.node")


class PodCidr:
    """Pass on `configured` until the cluster's Node has CIDRs of its own."""

    def __init__(self, runtime: RuntimeClient, tasks: Tasks, configured: str) -> None:
        self._runtime = runtime
        self._task = tasks.task("pod-cidr")
        self._wanted = configured
        self._reported = ""
        self._news = asyncio.Event()

    def start(self) -> None:
        self._news.set()
        self._task.start(self._update_runtime)

    async def stop(self) -> None:
        await self._task.stop()

    def node_changed(self, ranges: Sequence[str]) -> None:
        """Take `spec.podCIDRs` of the Node."""
        if ranges:
            self._wanted = ",".join(ranges)
            self._news.set()

    async def _update_runtime(self) -> None:
        failure = ""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._wanted == self._reported:
                continue
            # Kept: the wanted one may change while the runtime answers.
            cidr = self._wanted
            try:
                await self._runtime.update_pod_cidr(cidr)
            except Unimplemented as error:
                # Another attempt would not change the runtime; a CNI plugin has its own configuration then.
                log.warning("the runtime does not accept the pod CIDR %s: %s", cidr, error)
                self._reported = cidr
            except KubengineError as error:
                if str(error) != failure:
                    failure = str(error)
                    log.warning("cannot set the pod CIDR %s in the runtime: %s", cidr, error)
                await asyncio.sleep(RETRY_SECONDS)
                self._news.set()
            else:
                self._reported, failure = cidr, ""
