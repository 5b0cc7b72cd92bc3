"""Snapshots from JSON of every shape, and the errors for those that are broken or hostile."""

from __future__ import annotations

import gzip
import http.server
import io
import json
import socketserver
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api.errors import InvalidInput, Unavailable
from engine.api.pod import Pod
from engine.api.qos import is_critical, is_mirror, is_static, qos_class
from engine.api.resources import pod_requests, ranking_list, scaled_list
from engine.api.struct import decode_hook
from engine.plan import FaultLog, load_snapshot
from engine.plan.reading.json_stream import MAX_DEPTH, MAX_OBJECT, JSONStream
from engine.plan.snapshot.json_writer import documents, write_list
from engine.tables import CRITICAL, HAS_PRIORITY, MIRROR, PROTECTED, QOS_NAMES, STATIC
from tests.waiting import PATIENCE


def node(name: str = "n1", **status: Any) -> dict[str, Any]:
    amounts = {"cpu": "4", "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    status = {"allocatable": amounts, "capacity": amounts, **status}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}


def pod(name: str = "p1", requests: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "web", "resources": {"requests": requests or {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": f"u-{name}"},
        "spec": {"nodeName": "n1", "containers": [container], **spec},
        "status": {"phase": "Running"},
    }


def listed(*items: dict[str, Any], kind: str = "List") -> bytes:
    return json.dumps({"apiVersion": "v1", "items": list(items), "kind": kind}, indent=4).encode()


def load(tmp_path: Path, data: bytes, name: str = "x.json", **options: Any):
    path = tmp_path / name
    path.write_bytes(data)
    faults = FaultLog(strict=options.pop("strict", False))
    return load_snapshot([str(path)], faults=faults), faults


SHAPES = {
    "list": listed(node(), pod("a"), pod("b")),
    "ndjson": b"\n".join(json.dumps(o).encode() for o in (node(), pod("a"), pod("b"))),
    "array": json.dumps([node(), pod("a"), pod("b")]).encode(),
    "two lists": listed(node()) + b"\n" + listed(pod("a"), pod("b")),
    "raw lists": listed(node(), kind="NodeList")
    + json.dumps(
        {"kind": "PodList", "items": [{k: v for k, v in pod(n).items() if k != "kind"} for n in "ab"]}
    ).encode(),
    "gzip": gzip.compress(listed(node(), pod("a"), pod("b"))),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same(tmp_path, shape):
    snapshot, faults = load(tmp_path, SHAPES[shape])
    assert faults.total == 0, faults.kept
    assert snapshot.node_names == ["n1"]
    assert snapshot.pod_labels(np.arange(2)).to_pylist() == ["shop/a", "shop/b"]
    assert snapshot.allocatable("cpu").tolist() == [4000]


def test_a_folder_and_several_files(tmp_path):
    (tmp_path / "nodes.json").write_bytes(listed(node()))
    (tmp_path / "pods.json.gz").write_bytes(gzip.compress(listed(pod("a"))))
    assert load_snapshot([str(tmp_path)]).placed == 1
    assert load_snapshot([str(tmp_path / "nodes.json"), str(tmp_path / "pods.json.gz")]).placed == 1


def test_a_written_cluster_reads_back_the_same(cluster, tmp_path):
    for pretty in (True, False):
        stream = io.BytesIO()
        write_list(cluster, stream, pretty=pretty)
        read, faults = load(tmp_path, stream.getvalue())
        assert faults.total == 0, faults.kept
        for name in ("name", "uid", "node", "qos", "flags", "priority", "created"):
            assert read.pods[name].to_pylist() == cluster.pods[name].to_pylist(), name
        for resource in cluster.resources.names:
            for kind in ("request", "ranking"):
                assert (read.per_pod(f"{kind}/{resource}") == cluster.per_pod(f"{kind}/{resource}")).all()
            assert (read.allocatable(resource) == cluster.allocatable(resource)).all(), resource


amounts = st.sampled_from(
    [
        "0",
        "1",
        "1m",
        "250m",
        "1.5",
        "100u",
        "1n",
        "1Gi",
        "0.5Gi",
        "128974848",
        "129e6",
        "1e3",
        "2k",
        "1500m",
        "0.1",
    ]
)
resources = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "example.com/gpu", "hugepages-2Mi"]),
    amounts,
    max_size=4,
)
containers = st.builds(
    lambda requests, limits, sidecar: {
        "name": "c",
        "resources": {"requests": requests, "limits": limits},
        **({"restartPolicy": "Always"} if sidecar else {}),
    },
    resources, resources, st.booleans(),
)  # fmt: skip
pods = st.builds(
    lambda mains, inits, overhead, whole, priority, annotations, qos: {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "x", "uid": "u", "annotations": annotations},
        "spec": {
            "nodeName": "n1",
            "containers": [{k: v for k, v in c.items() if k != "restartPolicy"} for c in mains],
            "initContainers": inits,
            **({"overhead": overhead} if overhead else {}),
            **({"resources": {"requests": whole}} if whole else {}),
            **({"priority": priority} if priority is not None else {}),
        },
        "status": {"phase": "Running", **({"qosClass": qos} if qos else {})},
    },
    st.lists(containers, min_size=1, max_size=3), st.lists(containers, max_size=2), resources,
    st.none() | resources, st.none() | st.integers(-5, 2_000_001_000),
    st.dictionaries(
        st.sampled_from(
            ["kubernetes.io/config.source", "kubernetes.io/config.mirror", "kubengine.dev/do-not-preempt"]
        ),
        st.sampled_from(["api", "file", "", "true"]),
    ),
    st.sampled_from(["", "Guaranteed", "Burstable", "BestEffort"]),
)  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.lists(pods, min_size=1, max_size=4))
def test_rows_hold_what_the_api_package_computes(tmp_path, documents):
    for index, document in enumerate(documents):
        document["metadata"]["name"] = f"x{index}"
    snapshot, faults = load(tmp_path, listed(node(), *documents))
    assert faults.total == 0, faults.kept
    for row, document in enumerate(documents):
        typed = msgspec.convert(document, Pod, dec_hook=decode_hook)
        for kind, wanted in (
            ("request", scaled_list(pod_requests(typed))),
            ("ranking", scaled_list(ranking_list(typed))),
        ):
            for name in snapshot.resources.names:
                assert snapshot.per_pod(f"{kind}/{name}")[row] == wanted.get(name, 0), (kind, name, document)
        flags = int(snapshot.column("flags")[row])
        assert QOS_NAMES[snapshot.column("qos")[row]] == qos_class(typed)
        assert bool(flags & CRITICAL) == is_critical(typed)
        assert bool(flags & STATIC) == is_static(typed)
        assert bool(flags & MIRROR) == is_mirror(typed)
        assert bool(flags & HAS_PRIORITY) == (typed.spec.priority is not None)
        assert bool(flags & PROTECTED) == (typed.annotations.get("kubengine.dev/do-not-preempt") == "true")


FAULTS = {
    "negative": (pod("bad", {"cpu": "-1"}), "spec.containers[0].resources.requests.cpu", "negative"),
    "absurd": (pod("bad", {"memory": "9Ei"}), "spec.containers[0].resources.requests.memory", "more than"),
    "no number": (
        pod("bad", {"cpu": "much"}),
        "spec.containers[0].resources.requests.cpu",
        "quantity 'much'",
    ),
    "huge exponent": (pod("bad", {"cpu": "1e99999"}), "spec.containers[0].resources.requests.cpu", "suffix"),
    "list for text": (pod("bad", {"cpu": [1]}), "spec.containers[0].resources.requests.cpu", "list"),
    "no containers": (pod("bad", containers=[]), "spec.containers", "expected containers"),
    "priority": (pod("bad", priority=2**40), "spec.priority", "32-bit"),
    "wrong type": (pod("bad", containers="x"), "spec.containers", "array"),
    "class": ({**pod("bad"), "status": {"qosClass": "Best"}}, "status.qosClass", "QoS class"),
    "resource name": (pod("bad", {"not a name": "1"}), "", "not a resource name"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_object_and_field_and_the_rest_continues(tmp_path, fault):
    document, field, words = FAULTS[fault]
    data = listed(node(), pod("a"), document, pod("b"))
    snapshot, faults = load(tmp_path, data)
    assert snapshot.pod_labels(np.arange(snapshot.placed)).to_pylist() == ["shop/a", "shop/b"]
    assert [(f.subject, f.field) for f in faults.kept] == [("Pod shop/bad", field)]
    assert words in faults.kept[0].problem
    with pytest.raises(InvalidInput, match="shop/bad"):
        load(tmp_path, data, strict=True)


def test_a_node_with_a_bad_amount_is_named(tmp_path):
    _, faults = load(tmp_path, listed(node(), node("n2", allocatable={"cpu": "-4"})))
    assert [(f.subject, f.field) for f in faults.kept] == [("Node n2", "status.allocatable.cpu")]


def test_repeated_names_are_omitted_and_reported(tmp_path):
    snapshot, faults = load(tmp_path, listed(node(), node(), pod("a"), pod("a", {"cpu": "1"}), pod("b")))
    assert snapshot.pod_labels(np.arange(snapshot.placed)).to_pylist() == ["shop/a", "shop/b"]
    assert snapshot.per_pod("request/cpu").tolist() == [0, 0]
    assert {f.subject for f in faults.kept} == {"Node n1", "Pod shop/a"}


def test_pods_on_a_node_that_nothing_describes(tmp_path):
    snapshot, faults = load(tmp_path, listed(pod("a")))
    assert snapshot.nodes["known"].to_pylist() == [False]
    assert [f.subject for f in faults.kept] == ["Node n1"]


def test_cyclic_owners_are_no_trouble(tmp_path):
    a, b = pod("a"), pod("b")
    for one, other in ((a, b), (b, a)):
        one["metadata"]["ownerReferences"] = [
            {
                "kind": "Pod",
                "name": other["metadata"]["name"],
                "uid": other["metadata"]["uid"],
                "controller": True,
            }
        ]
    snapshot, faults = load(tmp_path, listed(node(), a, b))
    assert faults.total == 0
    assert snapshot.pods["owner"].to_pylist() == ["Pod/b", "Pod/a"]


def test_ended_and_pending_pods_count_on_no_node(tmp_path):
    done, waiting = pod("done", {"cpu": "1"}), pod("waiting", nodeName="")
    done["status"]["phase"] = "Succeeded"
    snapshot, _ = load(tmp_path, listed(node(), done, waiting, pod("a")))
    assert snapshot.placed == 1
    assert snapshot.pods.num_rows == 3


@pytest.mark.parametrize("cut", [0.3, 0.7, 0.99])
def test_a_cut_file_gives_what_was_whole(tmp_path, cut):
    data = listed(node(), *(pod(f"p{i}") for i in range(50)))
    snapshot, faults = load(tmp_path, data[: int(len(data) * cut)])
    assert 0 < snapshot.placed <= 50
    assert "cut off" in faults.kept[0].problem
    assert faults.kept[0].field.startswith("byte ")


def test_a_cut_gzip_gives_what_was_whole(tmp_path):
    data = gzip.compress(listed(node(), *(pod(f"p{i}", {"cpu": f"{i}m"}) for i in range(3000))))
    snapshot, faults = load(tmp_path, data[: len(data) // 2])
    assert 500 < snapshot.placed < 3000
    assert "reading failed" in faults.kept[0].problem


@pytest.mark.parametrize("data", [b"", b"not json", b"17", b"\x00\x01\x02", b"{}", b'{"items": 3}'])
def test_nothing_usable_is_one_error_with_the_path(tmp_path, data):
    with pytest.raises(InvalidInput, match=r"x\.json"):
        load(tmp_path, data)


def test_a_deep_object_is_skipped(tmp_path):
    deep = b'{"kind":"Pod","metadata":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"
    data = (
        b'{"items":['
        + json.dumps(node()).encode()
        + b","
        + deep
        + b","
        + json.dumps(pod("a")).encode()
        + b"]}"
    )
    snapshot, faults = load(tmp_path, data)
    assert snapshot.placed == 1
    assert f"deeper than {MAX_DEPTH}" in faults.kept[0].problem


@pytest.mark.parametrize(
    ("data", "words"), [(b'{"a":[' * 1000, "deeper"), (b"[" + b'{"a":[' * 1000, "cut off")]
)
def test_a_deep_document_ends_the_file(tmp_path, data, words):
    with pytest.raises(InvalidInput, match=words):
        load(tmp_path, data)


class Endless(io.RawIOBase):
    """Generate JSON of a given size while it is read."""

    def __init__(self, head: bytes, body: bytes, size: int) -> None:
        self._head, self._body, self._left = head, body, size

    def read1(self, size: int = -1) -> bytes:
        if self._head:
            data, self._head = self._head, b""
            return data
        count = min(size, self._left)
        self._left -= count
        return (self._body * (count // len(self._body) + 1))[:count]


def test_one_enormous_object_is_refused_after_a_bounded_part():
    faults = FaultLog()
    stream = Endless(b'{"kind":"Pod","x":"', b"a" * 65536, 2**30)
    source = JSONStream(stream, "big", faults)
    assert list(source) == []
    assert "larger than" in faults.kept[0].problem
    assert source.position < 4 * MAX_OBJECT


def test_many_resource_names_are_refused(tmp_path):
    documents = [pod(f"p{i}", {f"example.com/r{i}": "1"}) for i in range(100)]
    snapshot, faults = load(tmp_path, listed(node(), *documents))
    assert len(snapshot.resources) == 64
    assert faults.total == 100 - (64 - 3)
    assert "exceeds the 64 resources" in faults.kept[0].problem


def test_a_bundle_with_everything_per_node(tmp_path):
    summary = {
        "node": {
            "nodeName": "n1",
            "memory": {"availableBytes": 1000, "workingSetBytes": 5000},
            "fs": {"capacityBytes": 100, "availableBytes": 40, "inodes": 50, "inodesFree": 20},
            "runtime": {
                "imageFs": {"capacityBytes": 200, "availableBytes": 90},
                "containerFs": {"capacityBytes": 300, "availableBytes": 80},
            },
            "systemContainers": [
                {"name": "kubelet", "memory": {"availableBytes": 1, "workingSetBytes": 1}},
                {"name": "pods", "memory": {"availableBytes": 700, "workingSetBytes": 60}},
            ],
            "rlimit": {"maxpid": 99, "curproc": 9},
        },
        "pods": [
            {
                "podRef": {"name": "a", "namespace": "shop", "uid": "u"},
                "memory": {"workingSetBytes": 77},
                "ephemeral-storage": {"usedBytes": 5, "inodesUsed": 6},
                "process_stats": {"process_count": 7},
                "containers": [
                    {"name": "c", "rootfs": {"usedBytes": 2, "inodesUsed": 1}},
                    {"name": "d", "rootfs": {"usedBytes": 1, "inodesUsed": 3}},
                ],
            }
        ],
    }
    checkpoint = {
        "Data": {
            "PodDeviceEntries": [
                {"PodUID": "u-a", "ContainerName": "main", "ResourceName": "example.com/gpu",
                 "DeviceIDs": {"1": ["g1"]}, "AllocResp": ""}
            ],
            "RegisteredDevices": {"example.com/gpu": ["g0", "g1"]},
        },
        "Checksum": 1,
    }  # fmt: skip
    members = {
        "bundle/cluster.json": listed(node(images=[{"names": ["old:1"], "sizeBytes": 9}]), pod("a")),
        "bundle/nodes/n1/stats.json": json.dumps(summary).encode(),
        "bundle/nodes/n1/configz.json": json.dumps({"kubeletconfig": {"maxPods": 42}}).encode(),
        "bundle/n1.crictl-images.json": json.dumps(
            {"images": [{"id": "sha256:1", "repoTags": ["web:1"], "size": "123", "pinned": False}]}
        ).encode(),
        "bundle/n1.crictl-ps.json": json.dumps(
            {"containers": [{"image": {"image": "sha256:1"}, "imageRef": "sha256:1"}]}
        ).encode(),
        "bundle/nodes/n1/kubelet_internal_checkpoint.json": json.dumps(checkpoint).encode(),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            bundle.addfile(info, io.BytesIO(data))
    snapshot, faults = load(tmp_path, buffer.getvalue(), "bundle.tgz")
    assert faults.total == 0, faults.kept
    assert snapshot.reading("memory_available").tolist() == [1000]
    assert snapshot.reading("imagefs_capacity").tolist() == [200]
    assert snapshot.reading("containerfs_available").tolist() == [80]
    assert snapshot.reading("pods_memory_working_set").tolist() == [60]
    assert [snapshot.usage(name)[0].tolist() for name in ("layers", "layer_inodes")] == [[3], [4]]
    assert snapshot.pods["usage/memory"].to_pylist() == [77]
    assert snapshot.pods["usage/processes"].to_pylist() == [7]
    assert '"maxPods":42' in snapshot.nodes["config"][0].as_py()
    assert snapshot.images.to_pylist()[0] | {"last_used": 0} == {
        "node": 0, "image": "sha256:1", "names": "web:1", "size": 123, "last_used": 0, "first_detected": None,
        "pinned": False, "in_use": True, "source": "runtime",
    }  # fmt: skip
    owners = {d["device"]: (d["pod_uid"], d["numa"]) for d in snapshot.devices.to_pylist()}
    assert owners == {"g1": ("u-a", "1"), "g0": ("", "")}


def test_devices_of_an_agent_have_health_and_numa_nodes(tmp_path):
    (tmp_path / "a.json").write_bytes(listed(node()))
    owner = {"pod": "default/a", "podUID": "u-a", "container": "c"}
    described = [
        {"id": "g0", "health": "Healthy", "numa": [0], "owners": []},
        {"id": "g1", "health": "Unhealthy", "numa": [0, 1], "owners": [owner]},
        {"id": "g2", "health": "Gone", "numa": None, "owners": [owner | {"podUID": ""}]},
    ]
    resources = [{"name": "example.com/gpu", "capacity": 3, "devices": described}]
    (tmp_path / "devices.json").write_text(json.dumps({"resources": resources}))
    faults = FaultLog()
    snapshot = load_snapshot([str(tmp_path / "a.json"), str(tmp_path / "devices.json")], faults=faults)
    assert faults.total == 0, faults.kept
    assert [
        (row["device"], row["healthy"], row["numa"], row["pod_uid"]) for row in snapshot.devices.to_pylist()
    ] == [("g0", True, "0", ""), ("g1", False, "0,1", "u-a"), ("g2", False, "", "default/a")]


def test_an_extra_without_a_node_is_a_fault(tmp_path):
    (tmp_path / "a.json").write_bytes(listed(node(), node("n2")))
    (tmp_path / "b.json").write_bytes(b'{"kubeletconfig": {}}')
    faults = FaultLog()
    load_snapshot([str(tmp_path / "a.json"), str(tmp_path / "b.json")], faults=faults)
    assert "no node's name is in its path" in faults.kept[0].problem


def test_documents_are_what_kubectl_prints(cluster):
    kinds = {document["kind"] for document in documents(cluster)}
    assert kinds == {"Node", "Pod", "PriorityClass"}


def test_a_live_node_over_http(tmp_path):
    answers = {
        "/pods": json.dumps({"kind": "PodList", "items": [pod("a", {"cpu": "1"})]}).encode(),
        "/stats/summary": b'{"node": {"nodeName": "n1", "memory": {"availableBytes": 5}}, "pods": []}',
        "/configz": json.dumps({"kubeletconfig": {"maxPods": 9}}).encode(),
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = answers.get(self.path)
            self.send_response(200 if data is not None else 404)
            self.end_headers()
            self.wfile.write(data or b"")

        def address_string(self) -> str:
            return "a client"  # a unix socket's has no address

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            (tmp_path / "node.json").write_bytes(json.dumps(node()).encode())
            snapshot = load_snapshot([str(tmp_path / "node.json"), url])
            assert snapshot.placed == 1
            assert snapshot.reading("memory_available").tolist() == [5]
            assert '"maxPods":9' in snapshot.nodes["config"][0].as_py()
            faults = FaultLog()
            load_snapshot([url], faults=faults)
            assert "a kubelet does not serve its own Node object" in faults.kept[0].problem
            answers["/kubengine/node"] = json.dumps(node()).encode()
            assert load_snapshot([url], strict=True).nodes["known"].to_pylist() == [True]
            path = tmp_path / "kubengine.sock"
            with socketserver.ThreadingUnixStreamServer(str(path), Handler) as local:
                listener = threading.Thread(target=local.serve_forever)
                listener.start()
                snapshot = load_snapshot([str(path)], strict=True)
                local.shutdown()
                listener.join()
            assert snapshot.placed == 1
            assert '"maxPods":9' in snapshot.nodes["config"][0].as_py()
            with pytest.raises(Unavailable, match=r"kubengine\.sock:/pods: cannot be reached"):
                load_snapshot([str(path)])
            del answers["/configz"], answers["/stats/summary"]
            assert load_snapshot([str(tmp_path / "node.json"), url]).placed == 1
            del answers["/pods"]
            with pytest.raises(Unavailable, match="404"):
                load_snapshot([url])
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(Unavailable, match="cannot be reached"):
        load_snapshot([url])


@pytest.mark.slow
def test_a_gigabyte_needs_bounded_memory():
    script = """
import io, json, re
from engine.plan.snapshot.faults import FaultLog
from engine.plan.reading.json_stream import JSONStream

class Endless(io.RawIOBase):
    pod = {"kind": "Pod", "metadata": {"name": "x"}, "spec": {"note": "y" * 3000}}
    item = (json.dumps(pod) + ",").encode()
    left, head = 2**30, b'{"items":['
    def read1(self, size=-1):
        head, self.head = self.head, b""
        count = min(max(size // len(self.item), 1), max(self.left // len(self.item), 0))
        self.left -= count * len(self.item)
        return head + self.item * count

faults = FaultLog()
stream = JSONStream(Endless(), "big", faults)
count = sum(1 for _ in stream)
peak = re.search(r"VmHWM:\\s*([0-9]+)", open("/proc/self/status").read())[1]
print(count, stream.position, int(peak) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=PATIENCE
    )
    count, read, peak = map(int, done.stdout.split())
    assert count > 300_000
    assert read > 0.99 * 2**30
    assert peak < 300, peak


@pytest.mark.parametrize("where", ["labels", "image"])
def test_bytes_that_are_no_text_leave_whole_rows(tmp_path, where):
    data = listed(node(), pod("a"), pod("bad"), pod("b"))
    first, name, rest = data.partition(b'"name": "bad"')
    if where == "image":
        rest = rest.replace(b'"image": "web"', b'"image": "\xff"', 1)
    else:
        name += b', "labels": {"a": "\xff"}'
    snapshot, faults = load(tmp_path, first + name + rest)
    assert snapshot.pod_labels(np.arange(snapshot.placed)).to_pylist() == ["shop/a", "shop/b"]
    assert faults.total == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_snapshots_are_faults_or_one_error(tmp_path, cluster, data):
    """A few bytes changed or cut out anywhere: never anything but a fault or `InvalidInput`."""
    stream = io.BytesIO()
    write_list(cluster.shard(0, 1), stream, pretty=False)
    damaged = bytearray(stream.getvalue()[:40_000])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        if data.draw(st.booleans()):
            damaged[at] = data.draw(st.integers(0, 255))
        else:
            del damaged[at : at + data.draw(st.integers(1, 200))]
    try:
        snapshot, _ = load(tmp_path, bytes(damaged))
    except InvalidInput:
        return
    assert snapshot.placed <= snapshot.pods.num_rows
