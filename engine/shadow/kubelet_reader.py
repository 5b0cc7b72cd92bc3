"""Read the endpoints of a kubelet over HTTP, with GET requests only."""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from engine.api.config import KubeletConfiguration, keep_zeros
from engine.api.documents import convert
from engine.api.errors import InvalidInput, Unavailable
from engine.api.pod import Pod
from engine.eviction.usage import ContainerUsage, Disk
from engine.host.http.bodies import read_body
from engine.host.http.connections import DeadlineConnection, DeadlineTlsConnection
from engine.shadow.kinds.observation import FileSystem, MeasuredNode, MeasuredPod

TIMEOUT: Final = 30.0
"""Seconds. A busy kubelet needs more than ten for `/metrics`, because it measures the logs of all containers.
"""
MAX_BYTES: Final = 256 * 1024 * 1024
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding: JSON of another shape, text that is not UTF-8, a document thousands of levels deep."""
_SERIES: Final = re.compile(
    rb"^((?:kubelet_(?:evictions|preemptions|image_garbage_collected_total|admission_rejections_total)"
    rb"|process_start_time_seconds|prober_probe_total)(?:\{[^}\n]*\})?)"
    rb" ([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,2})?)$",
    re.MULTILINE,
)
"""The series that comparisons read. The other lines, some thousands, are not decoded."""


@dataclass(frozen=True, slots=True)
class KubeletAccess:
    """Hold the address of a kubelet, `https://host:10250` or `http://host:10255` (its read-only port), and
    the credentials for it.

    A certificate or a token authenticates the caller. `authority` is the file of the certificates that the
    kubelet's own is checked against; `unverified` skips the check.
    """

    url: str
    certificate: Path | None = None
    key: Path | None = None
    token_file: Path | None = None
    authority: Path | None = None
    unverified: bool = False


class KubeletReader:
    """Hold one connection to a kubelet. While the document of a pod does not change, `pods` returns the same
    object for it, so that callers compare by identity.
    """

    def __init__(self, access: KubeletAccess) -> None:
        parts = urlsplit(access.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput("expected http://HOST:PORT or https://HOST:PORT", subject=access.url)
        self._access = access
        self._host, self._port = parts.hostname, parts.port or (10250 if parts.scheme == "https" else 10255)
        self._context = _context(access) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None
        self._pods: dict[bytes, Pod] = {}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def pods(self) -> dict[str, Pod]:
        """Return the pods of the kubelet by uid. Raise `Unavailable` if the answer is not a list of pods."""
        data = self._get("/pods")
        if data is None:
            raise Unavailable("serves no /pods", subject=self._access.url)
        try:
            items = msgspec.json.decode(data, type=_PodList).items or []
            kept = {}
            for raw in map(bytes, items):
                known = self._pods.get(raw)
                kept[raw] = known if known is not None else convert(msgspec.json.decode(raw), Pod, "/pods")
        except (*_MALFORMED, InvalidInput) as error:
            raise Unavailable(f"/pods is not a list of pods: {error}", subject=self._access.url) from None
        self._pods = kept
        return {pod.uid: pod for pod in kept.values()}

    def config(self) -> KubeletConfiguration | None:
        """Return the configuration of the kubelet; None if this port does not serve it. Raise
        `Unavailable`.
        """
        data = self._get("/configz")
        if data is None:
            return None
        try:
            document = msgspec.json.decode(data)["kubeletconfig"]
            config = convert(document, KubeletConfiguration, "/configz")
            keep_zeros(config, document)
        except (*_MALFORMED, KeyError, TypeError, InvalidInput) as error:
            raise Unavailable(f"/configz is not a configuration: {error}", subject=self._access.url) from None
        return config

    def use(self) -> MeasuredNode | None:
        """Return the statistics of the node and its pods; None if the kubelet has none. Raise
        `Unavailable`.
        """
        data = self._get("/stats/summary?only_cpu_and_memory=false")
        if data is None:
            return None
        try:
            return _node_use(msgspec.json.decode(data, type=_Summary))
        except _MALFORMED as error:
            raise Unavailable(f"/stats/summary: {error}", subject=self._access.url) from None

    def series(self) -> Mapping[str, float]:
        """Return the metrics that comparisons read, by series (name and labels). Raise `Unavailable`."""
        return _series(self._get("/metrics") or b"")

    def probes(self) -> Mapping[str, float] | None:
        """Return the counters of probes by series; None if this port does not serve them. Raise
        `Unavailable`.
        """
        data = self._get("/metrics/probes")
        return None if data is None else _series(data)

    def _get(self, path: str) -> bytes | None:
        """Return the body; None if this port does not serve the path, or the kubelet is not ready to answer.
        Raise `Unavailable`.
        """
        subject = f"{self._access.url}{path.partition('?')[0]}"
        for attempt in (1, 2):
            try:
                connection = self._connect()
                connection.request("GET", path, headers=self._headers())
                answer = connection.getresponse()
                data = read_body(answer, MAX_BYTES)
                # The connection cannot send another request before the answer is closed.
                answer.close()
                break
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A kubelet closes idle connections: an old connection that fails is replaced once.
                if attempt == 2:
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    raise Unavailable(f"does not answer: {reason}", subject=subject) from None
        if answer.status in (404, 405, 500, 503):
            return None
        if answer.status in (401, 403):
            raise Unavailable(
                f"answered {answer.status} {answer.reason}: give a client certificate or a token that may "
                "`get` nodes/proxy, nodes/stats and nodes/metrics",
                subject=subject,
            )
        if answer.status != 200 or len(data) > MAX_BYTES:
            raise Unavailable(f"answered {answer.status} {answer.reason}", subject=subject)
        return data

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._context is not None:
                self._connection = DeadlineTlsConnection(
                    self._host, self._port, timeout=TIMEOUT, context=self._context
                )
            else:
                self._connection = DeadlineConnection(self._host, self._port, timeout=TIMEOUT)
        return self._connection

    def _headers(self) -> dict[str, str]:
        if self._access.token_file is None:
            return {}
        try:
            token = self._access.token_file.read_text().strip()
        except OSError as error:
            raise Unavailable(
                f"cannot read: {error.strerror}", subject=str(self._access.token_file)
            ) from None
        return {"Authorization": f"Bearer {token}"}


def _series(data: bytes) -> dict[str, float]:
    return {match[1].decode(errors="replace"): float(match[2]) for match in _SERIES.finditer(data)}


def _context(access: KubeletAccess) -> ssl.SSLContext:
    """Return the TLS settings of an access. Raise `InvalidInput` that names the files."""
    try:
        context = ssl.create_default_context(cafile=access.authority)
        if access.unverified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if access.certificate is not None:
            context.load_cert_chain(access.certificate, access.key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(str(file) for file in (access.authority, access.certificate, access.key) if file)
        raise InvalidInput(f"cannot be used for TLS: {error}", subject=files) from None
    return context


# The documents of /pods and /stats/summary, as far as comparisons read them.


class _PodList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _Memory(msgspec.Struct, rename="camel"):
    available_bytes: int | None = None
    working_set_bytes: int | None = None


class _Fs(msgspec.Struct, rename="camel"):
    capacity_bytes: int | None = None
    available_bytes: int | None = None
    used_bytes: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None
    inodes_used: int | None = None


class _Runtime(msgspec.Struct, rename="camel"):
    image_fs: _Fs | None = None
    container_fs: _Fs | None = None


class _Rlimit(msgspec.Struct):
    maxpid: int | None = None
    curproc: int | None = None


class _SystemContainer(msgspec.Struct):
    name: str = ""
    memory: _Memory | None = None


class _Node(msgspec.Struct, rename="camel"):
    memory: _Memory | None = None
    system_containers: list[_SystemContainer] | None = None
    fs: _Fs | None = None
    runtime: _Runtime | None = None
    rlimit: _Rlimit | None = None


class _Reference(msgspec.Struct):
    uid: str = ""


class _Processes(msgspec.Struct):
    process_count: int | None = None


class _Volume(_Fs):
    name: str = ""


class _ContainerStats(msgspec.Struct):
    name: str = ""
    memory: _Memory | None = None
    rootfs: _Fs | None = None
    logs: _Fs | None = None


class _PodStats(msgspec.Struct, rename="camel"):
    pod_ref: _Reference
    containers: list[_ContainerStats] | None = None
    volume: list[_Volume] | None = None
    memory: _Memory | None = None
    process_stats: _Processes | None = msgspec.field(default=None, name="process_stats")
    storage: _Fs | None = msgspec.field(default=None, name="ephemeral-storage")


class _Summary(msgspec.Struct):
    node: _Node
    pods: list[_PodStats] | None = None


def _node_use(summary: _Summary) -> MeasuredNode:
    node, memory = summary.node, summary.node.memory or _Memory()
    rlimit, runtime = node.rlimit or _Rlimit(), node.runtime or _Runtime()
    groups = {one.name: one.memory or _Memory() for one in node.system_containers or ()}
    pods = groups.get("pods", _Memory())
    return MeasuredNode(
        memory_available=memory.available_bytes,
        memory_working_set=memory.working_set_bytes,
        pods_available=pods.available_bytes,
        pods_working_set=pods.working_set_bytes,
        nodefs=_file_system(node.fs),
        imagefs=_file_system(runtime.image_fs),
        containerfs=_file_system(runtime.container_fs),
        max_pids=rlimit.maxpid,
        processes=rlimit.curproc,
        pods={pod.pod_ref.uid: _pod_use(pod) for pod in summary.pods or ()},
    )


def _file_system(fs: _Fs | None) -> FileSystem:
    fs = fs or _Fs()
    return FileSystem(fs.capacity_bytes, fs.available_bytes, fs.inodes, fs.inodes_free)


def _pod_use(pod: _PodStats) -> MeasuredPod:
    return MeasuredPod(
        memory=pod.memory.working_set_bytes if pod.memory is not None else None,
        storage=pod.storage.used_bytes if pod.storage is not None else None,
        processes=pod.process_stats.process_count if pod.process_stats is not None else None,
        containers={
            one.name: ContainerUsage(
                one.memory.working_set_bytes if one.memory is not None else None,
                _disk(one.rootfs),
                _disk(one.logs),
            )
            for one in pod.containers or ()
        },
        volumes={one.name: _disk(one) for one in pod.volume or ()},
    )


def _disk(fs: _Fs | None) -> Disk:
    return Disk(fs.used_bytes or 0, fs.inodes_used or 0) if fs is not None else Disk()
