"""Define the readers of outside bytes in Python and Cython, with the errors and properties of each.

A reader takes the bytes and returns; an exception is a finding. A run begins with the inputs in `SEEDS`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import logging
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Reader = Callable[[bytes], None]
PIECES = (1, 7)


def manifests() -> Reader:
    from engine.api.documents import parse_pods
    from engine.api.errors import InvalidInput

    def read(data: bytes) -> None:
        with contextlib.suppress(InvalidInput):
            parse_pods(data, "fuzz")

    return read


def config() -> Reader:
    from engine.api.documents import load_config
    from engine.api.errors import InvalidInput

    path = _scratch() / "config.yaml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(InvalidInput):
            load_config([path])

    return read


def checkpoint() -> Reader:
    from engine.devices.checkpoint import DeviceCheckpointError, decode, encode

    def read(data: bytes) -> None:
        with contextlib.suppress(DeviceCheckpointError):
            known = decode(data)
            assert decode(encode(known)) == known

    return read


def device_list() -> Reader:
    from engine._fast.devices import _device_list_c as compiled
    from engine._fast.devices import _device_list_py as twin

    def listed(index: Any, data: bytes) -> Any:
        try:
            found = index.read(data)
        except ValueError:
            return None
        nodes = [index.nodes(topology) for topology in found.topology.tolist()]
        return found.state.tolist(), nodes, found.new_ids, found.duplicates, found.nameless, found.odd

    def read(data: bytes) -> None:
        assert listed(compiled.DeviceIndex(["d0"]), data) == listed(twin.DeviceIndex(["d0"]), data)

    return read


def message_fields() -> Reader:
    from engine._fast.messages import _message_fields_c as compiled
    from engine._fast.messages import _message_fields_py as twin

    pickers = [
        (compiled.Picker(message, columns), twin.Picker(message, columns))
        for message, columns in (
            ("ListContainersResponse", ["id", "metadata.attempt", "state", "created_at", "labels[uid]"]),
            ("ListImagesResponse", ["id", "repo_tags", "size", "pinned", "spec.runtime_handler"]),
        )
    ]

    def picked(picker: Any, data: bytes) -> Any:
        try:
            return picker.pick(data)
        except ValueError:
            return None

    def read(data: bytes) -> None:
        for kernel, rule in pickers:
            ours, theirs = picked(kernel, data), picked(rule, data)
            assert ours == theirs or theirs is None

    return read


def json_split() -> Reader:
    import numpy as np

    from engine._fast.messages import _json_split_c as compiled
    from engine._fast.messages import _json_split_py as twin

    def read(data: bytes) -> None:
        for depth in (2, 100):
            ours, theirs = np.zeros((4, 2), np.int64), np.zeros((4, 2), np.int64)
            opened = compiled.open_document(data, 0, depth)
            assert opened == twin.open_document(data, 0, depth)
            found = compiled.split_items(data, opened[2], ours, depth)
            assert found == twin.split_items(data, opened[2], theirs, depth)
            assert (ours == theirs).all()
            assert compiled.close_document(data, 0, depth) == twin.close_document(data, 0, depth)

    return read


def spdy() -> Reader:
    from engine.transport.spdy import Data, FrameReader, SpdyError

    def frames(pieces: Iterable[bytes]) -> list[Any]:
        reader, seen, body = FrameReader(), [], bytearray()
        try:
            for piece in pieces:
                for frame in reader.feed(piece):
                    if isinstance(frame, Data):
                        body += frame.data
                    else:
                        seen.append(frame)
        except SpdyError:
            seen.append("refused")
        return [*seen, bytes(body)]

    return _same_in_pieces(frames)


def websocket() -> Reader:
    from engine.transport.websocket import Framing, WebSocketError

    def messages(pieces: Iterable[bytes]) -> list[Any]:
        reader, seen = Framing(1 << 16), []
        try:
            for piece in pieces:
                seen += reader.feed(piece)
        except WebSocketError:
            seen.append("refused")
        return seen

    return _same_in_pieces(messages)


def layer() -> Reader:
    from engine.api.errors import KubengineError
    from engine.runtime.images.layers import unpack
    from engine.runtime.images.tars import Limits

    around = _scratch()
    witness = around / "outside"
    witness.write_text("untouched")
    limits = Limits(entries=200, size=1 << 20)

    def read(data: bytes) -> None:
        target = around / "layer"
        target.mkdir()
        try:
            with contextlib.suppress(KubengineError, OSError):
                unpack(io.BytesIO(data), target, "sha256:0", limits)
            assert witness.read_text() == "untouched"
            assert sorted(path.name for path in around.iterdir()) == ["layer", "outside"]
        finally:
            shutil.rmtree(target)

    return read


def snapshot() -> Reader:
    from engine.api.errors import InvalidInput
    from engine.plan.reading.load import load_snapshot

    path = _scratch() / "cluster.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(InvalidInput):
            load_snapshot([str(path)])

    return read


def record_file() -> Reader:
    """Read the file of the agent's records, which a power cut or a disk may have damaged in any way."""
    from engine.host.records import lines
    from engine.host.records.store import RecordStore

    path = _scratch() / "kubengine_records"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        store = RecordStore(path)
        store.open()
        for name, (offset, length) in lines.scan(data).places.items():
            assert store.get(name) == lines.read(data[offset : offset + length])[1]
        if store._file >= 0:
            os.close(store._file)
        again = lines.scan(path.read_bytes())
        assert not again.damaged
        assert again.places.keys() == lines.scan(data).places.keys()
        for aside in path.parent.glob("*.bad-*"):
            aside.unlink()

    return read


def record_blocks() -> Reader:
    """Read blocks of a record; the input is also put into a block with a right checksum."""
    from engine.record.blocks import MAGIC, TornRecord, decode_blocks, encode_block
    from engine.record.reader import moment

    def read(data: bytes) -> None:
        body = zlib.compress(data, 1)
        head = MAGIC + len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little")
        for blocks in (data, head + body):
            with contextlib.suppress(TornRecord):
                for rows in decode_blocks(blocks):
                    assert not rows or next(decode_blocks(encode_block(rows))) == rows
                    assert all(moment(row.time) for row in rows)

    return read


def prometheus() -> Reader:
    """Read an answer of a Prometheus; the first byte chooses its status, encodings and headers."""
    from engine.api.errors import KubengineError
    from engine.plan.history import collect
    from engine.plan.history.collect import Collector, aligned
    from engine.plan.history.prometheus import Prometheus, ServerAccess
    from engine.plan.snapshot.faults import FaultLog

    times = aligned(1_800_000_000, 1 / 24, 300)
    statuses = (200, 200, 200, 503, 422, 401, 404, 302)

    class Server(Prometheus):
        answer = b""

        def _made_opener(self) -> Any:
            return self

        def open(self, request: Any, timeout: float) -> Any:
            return _answered(self.answer, statuses, request.full_url)

    server = Server(ServerAccess("http://p"), timeout=60, sleep=lambda _: None)

    def read(data: bytes) -> None:
        server.answer, server.warnings = data, []
        with contextlib.suppress(KubengineError):
            server.number("up", times.end)
        with contextlib.suppress(KubengineError):
            collector = Collector(server, times, FaultLog())
            for series in server.range("up", times.start, times.end, times.step):
                for measure in collect.MEASURES:
                    collector._add(measure, series)
            collector._report()

    return read


def kubelet() -> Reader:
    """Read what a kubelet serves to a shadow."""
    from engine.api.errors import KubengineError
    from engine.shadow.kubelet_reader import KubeletAccess, KubeletReader

    class Served(KubeletReader):
        answer = b""

        def _get(self, path: str) -> bytes | None:
            return self.answer

    reader = Served(KubeletAccess("http://k"))

    def read(data: bytes) -> None:
        reader.answer = data
        for ask in (reader.pods, reader.config, reader.use, reader.series):
            with contextlib.suppress(KubengineError):
                ask()

    return read


def api_lists() -> Reader:
    """Read a page of a list, as the planner reads a running cluster."""
    import asyncio

    from engine.api.errors import KubengineError
    from engine.cluster.client import ApiClient
    from engine.plan.live.cluster_reader import LISTS, ClusterReader
    from engine.plan.snapshot.faults import FaultLog

    class Client:
        peer = "a:1"
        decode = ApiClient.decode

        def __init__(self, data: bytes) -> None:
            self._data = data
            self._decoders: dict[Any, Any] = {}

        async def get(self, path: str, kind: Any, params: Any = None) -> Any:
            return self.decode(self._data, kind)  # type: ignore[misc, arg-type]

    async def follow(data: bytes) -> None:
        reader = ClusterReader(Client(data), FaultLog())  # type: ignore[arg-type]
        for kind, path in LISTS:
            with contextlib.suppress(KubengineError):
                await reader.read_list(kind, path)
        with contextlib.suppress(KubengineError):
            reader.snapshot()

    def read(data: bytes) -> None:
        asyncio.run(follow(data))

    return read


def _answered(data: bytes, statuses: tuple[int, ...], url: str) -> Any:
    """Return what `urllib` makes of a response over a connection that ends after `data`."""
    import http.client
    import urllib.error

    class Sent:
        def makefile(self, mode: str) -> io.BytesIO:
            chosen = data[0] if data else 0
            head = b"HTTP/1.1 %d X\r\n" % statuses[chosen & 7]
            head += b"Transfer-Encoding: chunked\r\n" if chosen & 8 else b""
            head += b"Content-Encoding: gzip\r\n" if chosen & 16 else b""
            date = data[1:41].split(b"\n")[0].replace(b"\r", b"") if chosen & 32 else b""
            return io.BytesIO(head + b"Date: " + date + b"\r\n\r\n" + data[1:])

    answer = http.client.HTTPResponse(Sent(), method="GET")  # type: ignore[arg-type]
    answer.begin()
    if answer.status >= 300:
        raise urllib.error.HTTPError(url, answer.status, answer.reason, answer.headers, answer)
    return answer


def http2_streams() -> Reader:
    """Play a conversation of several streams; the input chooses the steps, and what either side cuts off.

    Each field and each byte of data that a well-behaved server sends names its stream, so that nothing of one
    stream may turn up in another.
    """
    from engine._fast.http2._client_c import BROKEN, DATA, HEAD, ClientConnection, encode

    def frame(kind: int, flags: int, payload: bytes, stream: int) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload

    def block(stream: int, size: int) -> bytes:
        """Encode one to sixteen fields in HEADERS and CONTINUATION frames of `size` bytes."""
        fields = encode([(b":status", b"200"), *((b"x", b"%d" % stream) for _ in range(size % 16))])
        pieces = [fields[at : at + size] for at in range(0, len(fields), size)]
        last = len(pieces) - 1
        return b"".join(
            frame(9 if at else 1, 4 if at == last else 0, piece, stream) for at, piece in enumerate(pieces)
        )

    def receive(client: ClientConnection, data: bytes) -> None:
        for kind, stream, what, _ in client.receive(data):
            assert kind != BROKEN
            if kind == HEAD:
                assert all(value == b"%d" % stream for name, value in what if name == b"x")
                assert [name for name, _ in what].count(b":status") == 1
            elif kind == DATA:
                assert set(what) == {stream % 256}
                client.take(stream, len(what))

    def read(data: bytes) -> None:
        client = ClientConnection()
        client.receive(frame(4, 0, b"", 0))
        asked, open, headed, pending = encode([(b":method", b"GET")]), list[int](), set[int](), b""
        for step, choice in zip(data[::2], data[1::2], strict=False):
            chosen = open[choice % len(open)] if open else 0
            match step % 8:
                case 0 | 1 if client.ready and len(open) < 8:
                    open.append(client.request(asked))
                case 2 if chosen and chosen not in headed:
                    headed.add(chosen)
                    pending += block(chosen, 1 + choice % 40)
                case 3 if chosen in headed:
                    pending += frame(0, 0, bytes((chosen % 256,)) * (1 + choice), chosen)
                case 4 if chosen:
                    client.reset(chosen, 8)
                    open.remove(chosen)
                case 5 if chosen:
                    pending += frame(3, 0, bytes(4), chosen)
                    open.remove(chosen)
                case _:
                    now, pending = pending[:choice], pending[choice:]
                    receive(client, now)
            client.output()
        receive(client, pending)

    return read


def _same_in_pieces(read: Callable[[Iterable[bytes]], list[Any]]) -> Reader:
    """Return a reader that compares a whole input with the same input in pieces."""

    def compare(data: bytes) -> None:
        whole = read([data])
        for size in PIECES:
            assert read(data[at : at + size] for at in range(0, len(data), size)) == whole

    return compare


def _scratch() -> Path:
    """Return a new directory below TMPDIR, which the starter of a reader removes: a fuzzer just ends."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def _tar(*members: tuple[str, bytes, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"abc") if info.size else None)
    return out.getvalue()


_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": {"a": "b"}},
    "spec": {
        "nodeName": "n",
        "containers": [
            {
                "name": "c",
                "image": "i",
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1"}},
                "livenessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1},
            }
        ],
        "volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    },
}
_NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n"},
    "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
}
_POD_YAML = b"""apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {a: "b"}}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - &c {name: c, image: "i:1", command: [sh, -c, "sleep 1"], ports: [{hostPort: 80, containerPort: 80}]}
---
# another
"""
_CONFIG_YAML = b"""apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {memory.available: 100Mi, nodefs.available: 10%}
imageMinimumGCAge: 2m0s
kubeReserved: {cpu: 100m}
featureGates: {A: true}
---
apiVersion: kubengine.io/v1alpha1
kind: KubengineConfiguration
nodeLabels: {a: b}
"""

_USE = (
    b'\x20{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"namespace":"a","pod":"b",'
    b'"container":"c","node":"n"},"values":[[1799999700,"5"],[1800000000,"+Inf"]],"value":[1800000000,"3"]}]}}'
)


def _record_lines() -> bytes:
    from engine.host.records import lines

    records = (("a/spec", b"{}"), ("a/end", b""), ("a/spec", b"x y"), ("b/spec", b"\xff"))
    return b"".join(lines.line(key, value) for key, value in records)


def _record_block() -> bytes:
    from engine.record.blocks import RecordRow, encode_block

    rows = [RecordRow(time=1.8e9, stream="decision", name="admission refused", pod="d/p", inputs={"a": [1]})]
    return encode_block([*rows, RecordRow(time=1.7e9, stream="event", name="Started", text="é")])


SEEDS: dict[str, list[bytes]] = {
    "manifests": [_POD_YAML, json.dumps(_POD).encode(), b"- [[[[{a: *c}]]]]"],
    "config": [_CONFIG_YAML, b'{"kind": "KubeletConfiguration", "maxPods": 0}'],
    "checkpoint": [
        b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":0}',
        b'{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r/d",'
        b'"DeviceIDs":{"0":["a","b"]},"AllocResp":"CgA="}],"RegisteredDevices":{"r/d":["a","b"]}},"Checksum":1}',
    ],
    "device_list": [
        b"\x0a\x0f\x0a\x02d0\x12\x07Healthy\x1a\x00",
        b"\x0a\x15\x0a\x02d1\x12\x09Unhealthy\x1a\x04\x0a\x02\x08\x01\x0a\x04\x0a\x02d0",
    ],
    "message_fields": [
        b"\x0a\x1b\x0a\x01a\x1a\x05\x0a\x01n\x10\x02\x30\x01\x38\x85\x01\x42\x08\x0a\x03uid\x12\x01u",
        b"\x0a\x15\x0a\x01a\x12\x01b\x12\x01c\x20\x80\x02\x3a\x04\x9a\x01\x01h\x40\x01",
    ],
    "json_split": [
        b'{"kind":"List","items":[{"a":"}\\""},{"b":[1,{}]}],"z":1}',
        b'[{"a":1},\n{"b":null}]',
        b'{"items":[]} {"items":[{}]}',
    ],
    "spdy": [
        b"\x80\x03\x00\x04\x01\x00\x00\x0c\x00\x00\x00\x01\x04\x00\x00\x07\x00\x00\x10\x00",
        b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00\x01\x01\x00\x00\x03abc",
        b"\x80\x03\x00\x09\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x10\x00",
    ],
    "websocket": [
        b"\x82\x83\x01\x02\x03\x04\x60\x60\x60",
        b"\x02\x81\x00\x00\x00\x00a\x89\x80\x00\x00\x00\x00\x80\x81\x00\x00\x00\x00b",
        b"\x88\x82\x00\x00\x00\x00\x03\xe8",
    ],
    "layer": [
        _tar(("a/b", tarfile.REGTYPE, ""), ("a/.wh.c", tarfile.REGTYPE, ""), ("d", tarfile.DIRTYPE, "")),
        _tar(("l", tarfile.SYMTYPE, ".."), ("l/outside", tarfile.REGTYPE, "")),
        _tar(("a", tarfile.REGTYPE, ""), ("h", tarfile.LNKTYPE, "../outside")),
        _tar(("a/.wh...", tarfile.REGTYPE, ""), (".wh..wh..opq", tarfile.REGTYPE, "")),
    ],
    "http2_streams": [
        bytes((0, 0, 0, 0, 2, 7, 6, 40, 4, 0, 2, 1, 7, 255, 7, 255)),
        bytes((0, 0, 0, 0, 0, 0, 3, 9, 2, 16, 7, 20, 5, 1, 4, 0, 0, 0, 2, 18, 3, 200, 7, 90, 7, 255)),
    ],
    "record_file": [_record_lines()],
    "record_blocks": [_record_block(), zlib.decompress(_record_block()[12:])],
    "prometheus": [
        _USE,
        b"\x10" + gzip.compress(_USE[1:]),
        b"\x08%x\r\n%s\r\n0\r\n\r\n" % (len(_USE[1:]), _USE[1:]),
    ],
    "snapshot": [
        json.dumps({"kind": "List", "items": [_NODE, _POD]}).encode(),
        json.dumps({"node": {"nodeName": "n", "memory": {"workingSetBytes": 1}}, "pods": []}).encode(),
    ],
}  # fmt: skip

SEEDS["kubelet"] = [
    json.dumps({"items": [_POD]}).encode(),
    b'{"kubeletconfig": {"kind": "KubeletConfiguration", "evictionHard": {"memory.available": "1Mi"}}}',
    b'{"node": {"memory": {"availableBytes": 1}, "fs": {"inodes": 2}}, "pods": [{"podRef": {"uid": "u"}}]}',
    b'kubelet_evictions{eviction_signal="memory.available"} 3\nprocess_start_time_seconds 1.7e+09\n',
]
SEEDS["api_lists"] = [
    json.dumps({"metadata": {"continue": "x"}, "items": [_POD, _NODE]}).encode(),
    b'{"items": [{}, 1, {"metadata": {"name": "a"}}], "metadata": {"continue": ""}}',
]

READERS: dict[str, Callable[[], Reader]] = {
    "manifests": manifests,
    "config": config,
    "checkpoint": checkpoint,
    "device_list": device_list,
    "message_fields": message_fields,
    "json_split": json_split,
    "spdy": spdy,
    "websocket": websocket,
    "layer": layer,
    "snapshot": snapshot,
    "http2_streams": http2_streams,
    "record_file": record_file,
    "record_blocks": record_blocks,
    "prometheus": prometheus,
    "kubelet": kubelet,
    "api_lists": api_lists,
}

logging.disable(logging.CRITICAL)
