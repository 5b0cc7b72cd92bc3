"""CDI specification files of several drivers in one directory: a broken one does not harm the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import InvalidInput
from engine.runtime.cdi import with_devices
from engine.runtime.objects.failures import NoSuchObject
from engine.wire import cri_v1_pb2 as cri


def specify(path: Path, kind: str, edits: Any) -> None:
    devices = [{"name": "0", "containerEdits": edits}]
    path.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": devices}))


def asking(device: str) -> cri.ContainerConfig:
    return cri.ContainerConfig(CDI_devices=[cri.CDIDevice(name=device)])


@pytest.mark.parametrize("text", ["{", "[]", '{"devices": 1}', '{"devices": [null]}', "\xff", "[" * 100_000])
def test_a_broken_file_hides_only_its_own_devices(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text, encoding="latin-1")
    specify(tmp_path / "b.json", "vendor.example/gpu", {"env": ["GPU=zero"]})
    made = with_devices(asking("vendor.example/gpu=0"), [tmp_path])
    assert [(pair.key, pair.value) for pair in made.envs] == [("GPU", b"zero")]
    with pytest.raises(NoSuchObject, match=r"other\.example/gpu=0: in no specification file in .*a\.json"):
        with_devices(asking("other.example/gpu=0"), [tmp_path])


def test_a_file_that_is_removed_meanwhile_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to(tmp_path / "gone")
    specify(tmp_path / "b.json", "vendor.example/gpu", {"env": ["GPU=zero"]})
    assert with_devices(asking("vendor.example/gpu=0"), [tmp_path]).envs


@pytest.mark.parametrize(
    "edits",
    [{"env": [1]}, {"deviceNodes": [{}]}, {"mounts": ["x"]}, {"mounts": [{"hostPath": 1}]}, [1], "x"],
    ids=str,
)
def test_edits_of_another_form_refuse_the_device(tmp_path: Path, edits: Any) -> None:
    specify(tmp_path / "a.json", "vendor.example/gpu", edits)
    with pytest.raises(InvalidInput, match=r"CDI device vendor\.example/gpu=0: containerEdits do not have"):
        with_devices(asking("vendor.example/gpu=0"), [tmp_path])
