"""Reading a kubelet that misbehaves: an error with its address, never an exception of another kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.api.errors import InvalidInput, Unavailable
from engine.eviction.usage import ContainerUsage, Disk
from engine.shadow.kubelet_reader import KubeletAccess, KubeletReader
from tests.shadow.fake_kubelet import Fake

POD = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


@pytest.fixture
def reader(fake: Fake) -> Iterator[KubeletReader]:
    reader = KubeletReader(KubeletAccess(fake.url))
    yield reader
    reader.close()


def pods(*items: dict[str, Any]) -> tuple[int, bytes]:
    return 200, json.dumps({"items": items}).encode()


def test_a_pod_stays_the_same_object_while_its_document_does(fake: Fake, reader: KubeletReader) -> None:
    fake.answers["/pods"] = pods(POD)
    first = reader.pods()["u"]
    assert reader.pods()["u"] is first
    fake.answers["/pods"] = pods({**POD, "status": {"phase": "Running"}})
    assert reader.pods()["u"].status.phase == "Running"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "does not answer"),
        ((200, b'{"items": [{"metadata"'), "not a list of pods"),
        ((200, b'{"items": [{"spec": 7}]}'), "not a list of pods"),
        ((200, b'{"items": [{"metadata": {"name": "\xff"}}]}'), "not a list of pods"),
        ((200, b'{"items": ' + b"[" * 5000 + b"]" * 5000 + b"}"), "not a list of pods"),
        ((401, b""), "client certificate or a token"),
        ((404, b""), "serves no /pods"),
        ((502, b""), "answered 502"),
    ],
)
def test_answers_that_are_no_pods(
    fake: Fake, reader: KubeletReader, answer: tuple[int, bytes] | None, message: str
) -> None:
    fake.answers["/pods"] = answer
    with pytest.raises(Unavailable, match=message) as caught:
        reader.pods()
    assert fake.url in str(caught.value)
    fake.answers["/pods"] = pods(POD)
    assert list(reader.pods()) == ["u"]


def test_a_kubelet_that_is_not_there() -> None:
    reader = KubeletReader(KubeletAccess("http://127.0.0.1:1"))
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/pods: does not answer"):
        reader.pods()


def test_what_this_port_does_not_serve_is_none(fake: Fake, reader: KubeletReader) -> None:
    assert reader.config() is None
    assert reader.use() is None
    assert reader.series() == {}


def test_zeros_of_the_shown_configuration_stay(fake: Fake, reader: KubeletReader) -> None:
    document = {"kubeletconfig": {"kind": "KubeletConfiguration", "maxPods": 7, "port": 0}}
    fake.answers["/configz"] = (200, json.dumps(document).encode())
    config = reader.config()
    assert config is not None
    assert (config.max_pods, config.port) == (7, 0)


def test_statistics_and_series(fake: Fake, reader: KubeletReader) -> None:
    memory = {"availableBytes": 5, "workingSetBytes": 3}
    of_pod = {"memory": {"workingSetBytes": 2}, "process_stats": {"process_count": 1}}
    summary = {
        "node": {"memory": memory, "rlimit": {"maxpid": 9, "curproc": 4}},
        "pods": [{"podRef": {"uid": "u"}, **of_pod}],
    }
    fake.answers["/stats/summary"] = (200, json.dumps(summary).encode())
    use = reader.use()
    assert use is not None
    assert (use.memory_available, use.max_pids, use.processes) == (5, 9, 4)
    assert (use.pods["u"].memory, use.pods["u"].processes) == (2, 1)
    text = b'kubelet_evictions{eviction_signal="memory.available"} 2\nother_total 5\n'
    fake.answers["/metrics"] = (200, text)
    assert reader.series() == {'kubelet_evictions{eviction_signal="memory.available"}': 2.0}


def test_statistics_of_the_disk_and_of_all_pods(fake: Fake, reader: KubeletReader) -> None:
    disk = {"usedBytes": 7, "inodesUsed": 2}
    of_container = {"name": "c", "memory": {"workingSetBytes": 1}, "rootfs": disk, "logs": {"usedBytes": 3}}
    images = {"capacityBytes": 10, "availableBytes": 4, "inodes": 9}
    summary = {
        "node": {
            "systemContainers": [
                {"name": "kubelet", "memory": {"availableBytes": 1}},
                {"name": "pods", "memory": {"availableBytes": 6, "workingSetBytes": 4}},
            ],
            "fs": {"capacityBytes": 100, "inodes": 90},
            "runtime": {"imageFs": images, "containerFs": images},
        },
        "pods": [{"podRef": {"uid": "u"}, "containers": [of_container], "volume": [{"name": "v", **disk}]}],
    }
    fake.answers["/stats/summary"] = (200, json.dumps(summary).encode())
    use = reader.use()
    assert use is not None
    assert (use.pods_available, use.pods_working_set, use.layout) == (6, 4, "imagefs")
    assert use.pods["u"].containers == {"c": ContainerUsage(1, Disk(7, 2), Disk(3))}
    assert use.pods["u"].volumes == {"v": Disk(7, 2)}


ODD = {
    "not UTF-8": b'{"node": {}, "pods": [{"podRef": {"uid": "\xff"}}]}',
    "deep": b'{"node": ' + b"[" * 5000,
    "a number": b"7",
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_odd_documents_are_named(fake: Fake, reader: KubeletReader, body: bytes) -> None:
    fake.answers |= {"/configz": (200, body), "/stats/summary": (200, body)}
    for path, ask in (("/configz", reader.config), ("/stats/summary", reader.use)):
        with pytest.raises(Unavailable, match=path):
            ask()


@pytest.mark.parametrize("value", [b"e", b"1e", b"--1", b"1.2.3", b"9" * 5000, b"1e999", b"NaN"])
def test_series_that_are_no_numbers_are_left_out(fake: Fake, reader: KubeletReader, value: bytes) -> None:
    text = b'kubelet_evictions{s="\xff"} %s\nkubelet_preemptions 1e+06\n' % value
    fake.answers["/metrics"] = (200, text)
    assert reader.series() == {"kubelet_preemptions": 1e6}


def test_requests_share_a_connection(fake: Fake, reader: KubeletReader) -> None:
    fake.answers["/pods"] = pods(POD)
    reader.pods()
    connection = reader._connection
    assert connection is not None
    used = connection.sock
    reader.pods()
    assert connection.sock is used is not None


def test_only_get_is_asked(fake: Fake, reader: KubeletReader) -> None:
    fake.answers["/pods"] = pods()
    reader.pods(), reader.config(), reader.use(), reader.series()
    assert [method for method, _ in fake.asked] == ["GET"] * 4


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected http"):
        KubeletReader(KubeletAccess("127.0.0.1:10255"))
