"""Archives are what `docker save` and OCI tools would have written, and the same every time."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

from engine.testing.images import padding_layer, write_busybox, write_image, write_oci_image


def test_docker_archive_names_its_config_and_layers(tmp_path: Path) -> None:
    with tarfile.open(write_busybox(tmp_path / "b.tar")) as tar:
        [manifest] = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        raw = tar.extractfile(manifest["Config"]).read()  # type: ignore[union-attr]
        assert manifest["Config"] == hashlib.sha256(raw).hexdigest() + ".json"
        assert manifest["RepoTags"] == ["docker.io/library/busybox:latest"]
        digests = [
            "sha256:" + hashlib.sha256(tar.extractfile(name).read()).hexdigest()  # type: ignore[union-attr]
            for name in manifest["Layers"]
        ]
        assert digests == json.loads(raw)["rootfs"]["diff_ids"]


def test_oci_archive_blobs_match_their_names(tmp_path: Path) -> None:
    with tarfile.open(write_oci_image(tmp_path / "o.tar", ["example.com/a:1"])) as tar:
        index = json.load(tar.extractfile("index.json"))  # type: ignore[arg-type]
        blobs = [m for m in tar.getmembers() if m.name.startswith("blobs/sha256/")]
        assert len(blobs) == 3
        for blob in blobs:
            data = tar.extractfile(blob).read()  # type: ignore[union-attr]
            assert hashlib.sha256(data).hexdigest() == blob.name.rsplit("/", 1)[1]
        assert index["manifests"][0]["digest"][7:] in {b.name.rsplit("/", 1)[1] for b in blobs}


def test_archives_are_deterministic_and_padding_differs_by_name(tmp_path: Path) -> None:
    layers = [padding_layer(100_000, "a")]
    one = write_image(tmp_path / "1.tar", ["x:1"], layers=layers).read_bytes()
    two = write_image(tmp_path / "2.tar", ["x:1"], layers=layers).read_bytes()
    assert one == two
    assert padding_layer(100_000, "b") != layers[0]
    assert len(layers[0]) >= 100_000
