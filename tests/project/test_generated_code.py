"""`engine/wire` is what `make protos` would write."""

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
