"""Errors of documents name the field, and the key where it is a mapping's value."""

from __future__ import annotations

from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.documents import convert
from engine.api.documents.nearest import nearest, nearest_name
from engine.api.errors import InvalidInput
from engine.api.pod import Pod


def pod_with(resources: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "a"}, {"name": "b", "resources": resources}]}}


@pytest.mark.parametrize(
    ("document", "kind", "words"),
    [
        (
            {"evictionHard": {"nodefs.available": "5%", "memory.available": 5}},
            KubeletConfiguration,
            "evictionHard[memory.available]: Expected `str`, got `int`",
        ),
        (
            pod_with({"requests": {"memory": "1Gi", "cpu": "abc"}}),
            Pod,
            "spec.containers[1].resources.requests[cpu]: quantity 'abc' is not valid",
        ),
        (
            pod_with({"limits": {"cpu": "1", "memory": True}}),
            Pod,
            "spec.containers[1].resources.limits[memory]: expected a quantity",
        ),
        ({"metadata": {"labels": {"a": "b", "c": 1}}}, Pod, "metadata.labels[c]: Expected `str`, got `int`"),
        (
            {"staticPodURLHeader": {"a": ["x"], "b": [1]}},
            KubeletConfiguration,
            "staticPodURLHeader[b][0]: Expected",
        ),
        ({"spec": {"containers": 3}}, Pod, "spec.containers: Expected `array`, got `int`"),
        (7, Pod, "Expected `object`, got `int`"),
    ],
)
def test_the_field_is_named(document: Any, kind: type, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        convert(document, kind, "file.yaml")
    assert str(refused.value).startswith(f"file.yaml: {words}")


def test_a_mapping_of_very_many_keys_is_not_searched() -> None:
    labels = {f"label-{number}": "x" for number in range(2000)} | {"last": 1}
    with pytest.raises(InvalidInput, match=r"metadata\.labels\[\.\.\.\]: Expected"):
        convert({"metadata": {"labels": labels}}, Pod, "p")


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("gpu", ["cpu", "memory", "nvidia.com/gpu"], "nvidia.com/gpu"),
        ("nvidia.com/pgu", ["cpu", "nvidia.com/gpu"], "nvidia.com/gpu"),
        ("stauts", ["status", "devices"], "status"),
        ("evicionHard", ["evictionHard", "evictionSoft"], "evictionHard"),
        ("Memroy", ["memory"], "memory"),
        ("xyzzy", ["status", "devices"], None),
        ("", ["status"], None),
    ],
)
def test_the_nearest_name_is_found(name: str, known: list[str], meant: str | None) -> None:
    assert nearest_name(name, known) == meant
    assert nearest(name, known) == (f"; did you mean {meant}?" if meant else "")
