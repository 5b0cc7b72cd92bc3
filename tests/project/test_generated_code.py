"""What is made of the tree is made of all of it: `engine/wire` of the protos, kernels of their sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def test_wire_is_current_with_protos(tmp_path: Path) -> None:
    protos = sorted(str(path) for path in (ROOT / "protos/engine/wire").glob("*.proto"))
    assert protos
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "protos"), *outputs, *protos]
    subprocess.run(command, check=True, timeout=PATIENCE)
    generated = {path.name: path.read_text() for path in (tmp_path / "engine/wire").iterdir()}
    kept = {
        path.name: path.read_text()
        for path in (ROOT / "engine/wire").iterdir()
        if path.suffix in {".py", ".pyi"} and path.name != "__init__.py"
    }
    assert sorted(kept) == sorted(generated)
    stale = [name for name, text in generated.items() if kept[name] != text]
    assert not stale, f"run `make protos`: {stale}"


def test_make_rebuilds_the_kernels_when_any_of_their_sources_changes() -> None:
    command = ["make", "-s", "--eval", "known:; @echo $(KERNELS)", "known"]
    known = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=PATIENCE)
    kinds = {".pyx", ".pxd", ".h"}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "engine/_fast").rglob("*.*")}
    assert set(known.stdout.split()) == {name for name in sources if Path(name).suffix in kinds}
