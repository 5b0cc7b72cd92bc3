"""What comes from outside and cannot be read is said, and everything else goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.documents.reader import parse_pods
from engine.api.errors import InvalidInput
from engine.cri.client import RuntimeClient, Undecodable
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.waiting import eventually

NOT_A_MESSAGE = b"\x0a\xff\xff\xff\xff\x7f"


def nested(text: str, levels: int) -> str:
    opening, closing = {"json list": ("[", "]"), "json object": ('{"a":', "}"), "yaml": ("[", "]")}[text]
    inner = opening * levels + ("1" if text == "json object" else "") + closing * levels
    if text == "yaml":
        return f"apiVersion: v1\nkind: Pod\nspec: {inner}\n"
    return f'{{"apiVersion": "v1", "kind": "Pod", "spec": {inner}}}'


@pytest.mark.parametrize("levels", [101, 600, 950, 100_000])
@pytest.mark.parametrize("text", ["json list", "json object", "yaml"])
async def test_a_deep_manifest_is_named_and_the_others_are_read(rig: Rig, text: str, levels: int) -> None:
    deep = rig.manifests / "a-deep.yaml"
    deep.write_text(nested(text, levels))
    node = await rig.start()
    rig.write("later", {"containers": [container()]})

    def runs() -> bool:
        return rig.phase("later") == "Running"

    await eventually(runs)
    [fault] = [event.message for event in node.recorder if event.reason == "FailedManifest"]
    assert str(deep) in fault
    assert not [error for _, error in node.healthz() if error]


async def test_a_manifest_that_trips_over_our_own_mistake_is_named_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.node.sources import manifests as sources

    whole: Callable[[bytes, str], Any] = parse_pods

    def parse(data: bytes, subject: str) -> Any:
        if b"trips" in data:
            raise KeyError("mistake")
        return whole(data, subject)

    monkeypatch.setattr(sources, "parse_pods", parse)
    rig.write("a-trips", {"containers": [container("trips")]})
    rig.write("b", {"containers": [container()]})
    node = await rig.start()

    def runs() -> bool:
        return rig.phase("b") == "Running"

    await eventually(runs)
    [fault] = [event.message for event in node.recorder if event.reason == "FailedManifest"]
    assert "a-trips.yaml: unexpected KeyError" in fault


async def test_malformed_events_are_counted_and_pods_stay_correct(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    garbled = True
    real = RuntimeClient._made

    def made(client: RuntimeClient, name: str, make: Any, data: bytes) -> Any:
        spoilt = garbled and name == "GetContainerEvents"
        return real(client, name, make, NOT_A_MESSAGE if spoilt else data)

    monkeypatch.setattr(RuntimeClient, "_made", made)
    node = await rig.start()
    rig.write("a", {"containers": [container()]})

    def runs() -> bool:
        return rig.phase("a") == "Running"

    def in_trouble() -> bool:
        return "Undecodable" in (dict(node.healthz())["runtime-events"] or "")

    await eventually(runs)
    await eventually(in_trouble)
    assert node.tasks.failures.values[("runtime-events",)] >= 1
    garbled = False

    def well() -> bool:
        return not [error for _, error in node.healthz() if error]

    await eventually(well)
    rig.write("b", {"containers": [container()]})

    def runs_too() -> bool:
        return rig.phase("b") == "Running"

    await eventually(runs_too)


@pytest.mark.parametrize("call", ["ListContainers", "ListPodSandbox"])
async def test_malformed_lists_lose_no_pod(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    garbled = False
    real = RuntimeClient._made

    def made(client: RuntimeClient, name: str, make: Any, data: bytes) -> Any:
        return real(client, name, make, NOT_A_MESSAGE if garbled and name == call else data)

    monkeypatch.setattr(RuntimeClient, "_made", made)
    node = await rig.start()
    garbled = True
    node.running.watch._wake.set()

    def in_trouble() -> bool:
        return "Undecodable" in (dict(node.healthz())["runtime-relist"] or "")

    await eventually(in_trouble)
    rig.write("a", {"containers": [container()]})
    garbled = False
    node.running.watch._wake.set()

    def runs() -> bool:
        return rig.phase("a") == "Running" and not [error for _, error in node.healthz() if error]

    await eventually(runs)


async def test_a_malformed_answer_names_the_call(
    tmp_path: Path, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RuntimeClient._made
    monkeypatch.setattr(
        RuntimeClient, "_made", lambda client, name, make, _: real(client, name, make, NOT_A_MESSAGE)
    )
    runtime = RuntimeClient(str(hollow.socket))
    try:
        with pytest.raises(Undecodable, match=r"CRI Version on .*: its response cannot be decoded"):
            await runtime.version()
    finally:
        await runtime.close()


@pytest.mark.parametrize("levels", [101, 1_000, 100_000])
@pytest.mark.parametrize("text", ["json list", "json object", "yaml"])
def test_a_deep_configuration_is_named(tmp_path: Path, text: str, levels: int) -> None:
    from engine.api.documents import load_config

    path = tmp_path / "config.yaml"
    path.write_text(nested(text, levels))
    with pytest.raises(InvalidInput, match=str(path)):
        load_config([path])
