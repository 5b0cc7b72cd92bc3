"""No field of a pod is silently ignored: `docs/pod-fields.md` says what the agent does with each.

`data/pod_spec_fields.txt` are the paths of all fields of a v1.36 PodSpec; `initContainers[]` have those of
`containers[]`, and of `ephemeralContainers[]` only those are listed that are theirs alone or refused.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from engine.api.defaults import apply_defaults
from engine.api.documents import convert
from engine.api.pod import Pod, PodSpec
from engine.api.validation import problems
from engine.node.pod_admission import unsupported_fields

ROOT = Path(__file__).resolve().parents[2]
FIELDS = (Path(__file__).parent / "data" / "pod_spec_fields.txt").read_text().split()
HONOURED, REFUSED, NO_EFFECT = "Honoured", "Refused", "Without effect on a node"
DECIDED_ELSEWHERE = (
    "engine/api/pod.py",
    "engine/api/references.py",
    "engine/api/validation/",
    "engine/api/defaults.py",
)
LATER = ("volumes[]", "schedulingGates[]")
"""Refused when they are to be used; an API server lets no gated pod come to a node."""


@cache
def sections_by_path() -> dict[str, str]:
    """Return the section of docs/pod-fields.md that lists each path."""
    text = (ROOT / "docs" / "pod-fields.md").read_text()
    sections = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    return {
        path: name
        for name, body in zip(sections[::2], sections[1::2], strict=True)
        for path in re.findall(r"^\| `([^`]+)` \|", body, flags=re.MULTILINE)
    }


def is_below(field: str, path: str) -> bool:
    return field == path or (field.startswith(path) and field[len(path)] in ".[")


def verdict(field: str) -> str:
    found = [path for path in sections_by_path() if is_below(field, path)]
    return sections_by_path()[max(found, key=len)] if found else ""


@cache
def code() -> str:
    """Return the agent's code without the parts that only read, check or fill in specs."""
    files = [p.relative_to(ROOT) for p in (ROOT / "engine").rglob("*.py")]
    return "\n".join(
        (ROOT / p).read_text()
        for p in files
        if not {"plan", "testing"} & set(p.parts) and not str(p).startswith(DECIDED_ELSEWHERE)
    )


def attribute(field: str) -> str:
    """Return the name of a pod's field in our types; fail if there is none."""
    kind: Any = PodSpec
    name = ""
    for part in field.replace("[]", "").split("."):
        structs = [k for k in (kind, *_inner(kind)) if isinstance(k, type) and issubclass(k, msgspec.Struct)]
        assert structs, f"{field}: {name} is kept as plain data"
        found = {f.encode_name: f for f in msgspec.structs.fields(structs[0])}
        assert part in found, f"{field}: {structs[0].__name__} has no {part}"
        kind, name = found[part].type, found[part].name
    return name


def _inner(kind: Any) -> list[Any]:
    return [each for arg in get_args(kind) for each in (arg, *_inner(arg))]


def with_field(field: str) -> Pod:
    """Return a pod that has the field, and the other fields that its shape requires."""
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}]}
    here: Any = spec
    parts = field.split(".")
    for position, part in enumerate(parts):
        name, last = part.removesuffix("[]"), position == len(parts) - 1
        if part.endswith("[]"):
            known = here.setdefault(name, [])
            if last:
                known.append("x")
            elif not known:
                known.append({"name": "v"} if name in ("volumes", "env") else {})
            here = known[0]
        elif last:
            here.setdefault(name, name == "optional" or "x")
        else:
            here = here.setdefault(name, {})
    for claims in (spec.get("resources"), spec["containers"][0].get("resources")):
        for claim in (claims or {}).get("claims", ()):
            claim.setdefault("name", "x")
    pod = convert({"metadata": {"name": "p"}, "spec": spec}, Pod, field)
    apply_defaults(pod)
    return pod


def test_every_field_has_one_verdict_and_nothing_else_has():
    assert [field for field in FIELDS if not verdict(field)] == []
    assert [path for path in sections_by_path() if not any(is_below(field, path) for field in FIELDS)] == []


@pytest.mark.parametrize("field", [field for field in FIELDS if verdict(field) == HONOURED])
def test_every_honoured_field_is_read_by_the_agent(field: str):
    name = attribute(field)
    assert re.search(rf"\b{name}\b", code()), f"{field}: no code reads {name}"


@pytest.mark.parametrize(
    "field", [field for field in FIELDS if verdict(field) == REFUSED and ".tcpSocket" not in field]
)
def test_every_refused_field_is_named(field: str):
    """All but handlers, which are refused when they run: `tests/node/sync/test_hooks.py`."""
    pod = with_field(field)
    top = field.partition(".")[0].removesuffix("[]")
    found = [text for text in problems(pod) if text.startswith(f"spec.{top}")]
    assert found, f"a manifest may have {field}"
    if not field.startswith(LATER):
        assert list(unsupported_fields(pod)), f"a pod of an API server may have {field}"
