"""Reads static pods from a URL (`staticPodURL`) every `httpCheckFrequency`.

If the URL cannot be fetched or parsed, the pods that were last read stay. Source: kubelet v1.36
(`config/http.go`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from engine.api.documents import parse_pods
from engine.api.errors import InvalidInput, KubengineError, Refused, Unavailable
from engine.api.pod import Pod
from engine.api.qos import SOURCE_HTTP
from engine.cri.records import PodRecord
from engine.host.node_context import NodeContext
from engine.node.sources.static_pods import StaticUids, static_pod

ANSWER_SECONDS: Final = 10.0
MOST_BYTES: Final = 10 * 1024 * 1024
STEP_SECONDS: Final = 60.0

log = logging.getLogger("kubengine.sources")

Headers = Mapping[str, Sequence[str]]


def fetch(url: str, headers: Headers) -> bytes:
    """Return the body of a response with status 200. Blocks for at most ANSWER_SECONDS.

    Raises Unavailable or Refused, naming the URL.
    """
    import http.client
    import urllib.error
    import urllib.request

    from engine.host.http.bodies import read_body
    from engine.host.http.handlers import deadline_handlers

    if not url.startswith(("http://", "https://")):
        raise Refused("expected http:// or https://", subject=url)
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked
        url, headers={name: ", ".join(values) for name, values in headers.items()}
    )
    opener = urllib.request.build_opener(*deadline_handlers())
    try:
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            if answer.status != http.HTTPStatus.OK:
                raise Refused(f"{answer.status} {answer.reason}", subject=url)
            data = read_body(answer, MOST_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        raise Refused(f"{error.code} {error.reason}", subject=url) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unavailable(str(getattr(error, "reason", "") or error), subject=url) from error
    if len(data) > MOST_BYTES:
        raise Refused(f"more than {MOST_BYTES} bytes", subject=url)
    return data


class ManifestUrl:
    """Read the static pods of one URL.

    `on_change(pods)` is called with all pods after every change. `on_fault(error)` is called if the URL
    cannot be fetched or parsed, but only once in a row for the same error.
    """

    def __init__(
        self,
        context: NodeContext,
        url: str,
        *,
        uids: StaticUids,
        on_change: Callable[[list[Pod]], None],
        on_fault: Callable[[KubengineError], None],
    ) -> None:
        self._url, self._headers = url, context.config.static_pod_url_header or {}
        self._node_name = context.name
        self._period = context.config.http_check_frequency
        self._clock = context.clock
        self._uids = uids
        self._on_change, self._on_fault = on_change, on_fault
        self._task = context.tasks.task("manifest-url")
        self._data: bytes | None = None
        self._fault = ""

    async def start(self) -> None:
        self._task.start(self._run)

    async def stop(self) -> None:
        await self._task.stop()

    async def _run(self) -> None:
        while True:
            with self._task.step(STEP_SECONDS):
                await self._fetch()
            await asyncio.sleep(self._period)

    async def _fetch(self) -> None:
        try:
            data = await asyncio.to_thread(fetch, self._url, self._headers)
            if data != self._data:
                self._read(data)
                self._data = data
        except KubengineError as error:
            if str(error) != self._fault:
                self._on_fault(error)
            self._fault = str(error)
        else:
            if self._fault:
                log.info("%s: read again", self._url)
            self._fault = ""

    def _read(self, data: bytes) -> None:
        """Parse the pods of a response; an empty response means no pods. Raise InvalidInput."""
        if not data:
            self._on_change([])
            raise InvalidInput("zero-length data received", subject=self._url)
        manifests, warnings = parse_pods(data, self._url)
        held = self._uids.held()
        pods = {pod.full_name: pod for pod in (self._pod(each, held) for each in reversed(manifests))}
        for warning in warnings:
            log.warning("%s", warning)
        self._uids.keep_only(pod.uid for pod in pods.values())
        self._on_change(list(reversed(pods.values())))
        if len(pods) < len(manifests):
            text = "several pods have the same name; the first of each is used"
            raise InvalidInput(text, subject=self._url)

    def _pod(self, manifest: Pod, held: Mapping[str, PodRecord]) -> Pod:
        return static_pod(
            manifest,
            node_name=self._node_name,
            origin=self._url,
            source=SOURCE_HTTP,
            seen_at=self._clock(),
            uid_of=lambda pod, digest, new: self._uids.choose(pod, digest, new, held),
        )
