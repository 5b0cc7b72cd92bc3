"""The table of devices at a narrow terminal."""

from __future__ import annotations

from typing import Any

import pytest

from engine.cli.devices import _tables


def test_ids_that_differ_at_their_end_stay_distinguishable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ids = [f"GPU-8a21c0de-5f3b-4c2e-9b7d-00000000000{number}" for number in range(8)]
    devices: list[dict[str, Any]] = [
        {
            "id": id,
            "health": "Healthy",
            "numa": [0],
            "owners": [{"pod": "shop/trainer", "podUID": "u", "container": "main"}],
        }
        for id in ids
    ]
    counts = {"capacity": 8, "allocatable": 8, "allocated": 8}
    _tables(
        [{"name": "nvidia.com/gpu", **counts, "plugin": "registered", "complaint": "", "devices": devices}]
    )
    shown = capsys.readouterr().out
    assert "…" not in shown.partition("Device")[2]
    assert all(str(number) in shown for number in range(8))
