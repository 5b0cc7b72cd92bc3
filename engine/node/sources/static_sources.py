"""Reads the node's static pods from the manifest directory and the manifest URL, if they are configured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.api.errors import KubengineError
from engine.api.events import WARNING
from engine.api.pod import Pod
from engine.cri.records import PodRecord
from engine.host.node_context import NodeContext
from engine.host.stopping import stop_all
from engine.node.pod.records import AcceptedSpecs
from engine.node.sources.manifests import ManifestDirectory
from engine.node.sources.pod_sink import MANIFEST_URL, MANIFESTS
from engine.node.sources.static_pods import StaticUids

if TYPE_CHECKING:
    from engine.node.sources.manifest_url import ManifestUrl


class StaticSources:
    """Read all sources of static pods.

    After every change, `desired(pods, source)` is called with the source's whole list, and then
    `mirrored(pods)` with the lists of all sources. `records()` returns the pods in the runtime.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        records: Callable[[], Iterable[PodRecord]],
        accepted: AcceptedSpecs,
        desired: Callable[[list[Pod], str], None],
        mirrored: Callable[[list[Pod]], None],
    ) -> None:
        config = context.config
        self._recorder = context.recorder
        self._desired, self._mirrored = desired, mirrored
        self._pods: dict[str, list[Pod]] = {}
        self._directory: ManifestDirectory | None = None
        self._url: ManifestUrl | None = None
        if config.static_pod_path:
            self._directory = ManifestDirectory(
                Path(config.static_pod_path),
                node_name=context.name,
                period=config.file_check_frequency,
                clock=context.clock,
                uids=StaticUids(records, accepted),
                on_change=lambda pods: self._changed(pods, MANIFESTS),
                on_fault=self._fault,
                tasks=context.tasks,
            )
        if config.static_pod_url:
            from engine.node.sources.manifest_url import ManifestUrl

            self._url = ManifestUrl(
                context,
                config.static_pod_url,
                uids=StaticUids(records, accepted),
                on_change=lambda pods: self._changed(pods, MANIFEST_URL),
                on_fault=self._fault,
            )

    async def start(self) -> None:
        """Start the sources and wait until the directory has been read; the URL is read in the background."""
        if self._directory is not None:
            await self._directory.start()
            await self._directory.scanned.wait()
        else:
            self._changed([], MANIFESTS)
        if self._url is not None:
            await self._url.start()

    async def stop(self) -> None:
        await stop_all(each.stop for each in (self._directory, self._url) if each is not None)

    def _changed(self, pods: list[Pod], source: str) -> None:
        self._pods[source] = pods
        self._desired(pods, source)
        self._mirrored([pod for each in self._pods.values() for pod in each])

    def _fault(self, error: KubengineError) -> None:
        self._recorder.node(WARNING, "FailedManifest", str(error))
