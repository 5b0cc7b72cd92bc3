"""JSON is encoded as msgspec would, and without memory by an error that can be caught."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from engine.api.duration import Duration
from engine.api.encoding.json_text import encode_json, encode_json_sorted
from engine.api.struct import to_json

VALUE = {"b": ["x" * 3000, *range(300)], "a": {str(number): "y" * 20 for number in range(100)}}
POINTS = 150
"""Allocations that fail in turn; encoding the value takes fewer."""
CHILD = f"""
import sys
import _testcapi
from engine.api.encoding import json_text
encode = getattr(json_text, sys.argv[1])
value = {VALUE!r}
encode(value)
caught = 0
for point in range({POINTS}):
    _testcapi.set_nomemory(point, point + 1)
    try:
        encode(value)
    except MemoryError:
        caught += 1
    finally:
        _testcapi.remove_mem_hooks()
print(caught)
"""


def test_bytes_are_those_of_msgspec() -> None:
    assert encode_json(VALUE) == msgspec.json.encode(VALUE)
    assert encode_json_sorted(VALUE) == msgspec.json.encode(VALUE, order="deterministic")
    assert to_json([Duration.parse("90s")]) == b'["1m30s"]'


@pytest.mark.parametrize("name", ["encode_json", "encode_json_sorted"])
def test_no_memory_for_an_allocation_raises(name: str) -> None:
    """Fail each allocation of one encoding in turn, in a process that a crash may end."""
    pytest.importorskip("_testcapi")
    ended = subprocess.run([sys.executable, "-c", CHILD, name], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended
    assert 0 < int(ended.stdout) < POINTS
