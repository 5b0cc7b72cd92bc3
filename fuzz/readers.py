"""What reads outside bytes in Python or Cython, each with what its reader may raise and what must hold.

A reader takes the bytes and returns; anything that it raises is a finding. `SEEDS` are where a run begins.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import tarfile
import tempfile
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

    def hear(client: ClientConnection, data: bytes) -> None:
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
                    hear(client, now)
            client.output()
        hear(client, pending)

    return read


def _same_in_pieces(read: Callable[[Iterable[bytes]], list[Any]]) -> Reader:
    """However the bytes arrive, the reader sees the same."""

    def compare(data: bytes) -> None:
        whole = read([data])
        for size in PIECES:
            assert read(data[at : at + size] for at in range(0, len(data), size)) == whole

    return compare


def _scratch() -> Path:
    """Below TMPDIR, which whoever starts a reader takes away: a fuzzer's process ends without a word."""
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
    "snapshot": [
        json.dumps({"kind": "List", "items": [_NODE, _POD]}).encode(),
        json.dumps({"node": {"nodeName": "n", "memory": {"workingSetBytes": 1}}, "pods": []}).encode(),
    ],
}  # fmt: skip

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
}

logging.disable(logging.CRITICAL)
