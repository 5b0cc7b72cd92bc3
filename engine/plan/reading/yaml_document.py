"""Decode YAML files of our own formats into typed structs, with errors that give line and field."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from engine.api.documents import parse_documents, read_text
from engine.api.errors import InvalidInput

T = TypeVar("T")

MOST_LINES = 100_000
"""Fields whose lines are kept: aliases multiply them."""

_MSGSPEC_PATH = re.compile(r"(?s)(.*?)(?: - at `(?:key in )?\$(.*)`)?")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")

Path_ = tuple[str | int, ...]


class YAMLDocument:
    """Hold one document and the position of each of its fields."""

    def __init__(self, path: Path) -> None:
        """Read the document. Raise `InvalidInput` naming the file, and the line of a syntax error."""
        self.path = path
        data = read_text(path)
        found = parse_documents(data, str(path))
        if len(found) != 1:
            raise InvalidInput(f"expected one document, found {len(found)}", subject=str(path))
        self.plain: dict[str, Any] = found[0]
        self._lines: dict[Path_, int] = {}
        # JSON that is indented with tabs is no YAML: its errors name no lines.
        with suppress(yaml.YAMLError):
            for root in yaml.compose_all(data.decode(), Loader=yaml.CSafeLoader):
                if isinstance(root, yaml.MappingNode):  # empty documents may stand around the one
                    self._mark(root, ())

    def _mark(self, node: yaml.Node, at: Path_) -> None:
        if len(self._lines) > MOST_LINES:
            return
        self._lines.setdefault(at, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            names = set[str]()
            for key, value in node.value:
                name = str(key.value)
                self._lines[(*at, name)] = key.start_mark.line + 1
                if name in names:
                    raise self.error((*at, name), "is given twice")
                names.add(name)
                self._mark(value, (*at, str(key.value)))
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._mark(value, (*at, index))

    def error(self, at: Path_, problem: str) -> InvalidInput:
        """Return an error about the field at a path, or about the nearest parent that the file contains."""
        known = at
        while known and known not in self._lines:
            known = known[:-1]
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in at).lstrip(".")
        where = f"line {self._lines.get(known, 1)}: "
        return InvalidInput(f"{where}{field + ': ' if field else ''}{problem}", subject=str(self.path))

    def convert(self, kind: type[T], value: Any = None, at: Path_ = ()) -> T:
        """Convert the document, or its part at `at`, to a struct. Raise `InvalidInput`."""
        try:
            return msgspec.convert(self.plain if value is None else value, kind)
        except msgspec.ValidationError as error:
            text, path = split_error(error)
            raise self.error((*at, *path), text) from None


def split_error(error: msgspec.ValidationError) -> tuple[str, Path_]:
    """Split a `msgspec` error into its message and the path of the field; an unknown field is
    part of the path.
    """
    match = _MSGSPEC_PATH.fullmatch(str(error))
    text, path = (match[1], match[2] or "") if match else (str(error), "")
    steps: list[str | int] = []
    for step in _STEP.finditer(path):
        if step[1] is not None:
            steps.append(step[1])
        elif step[2] is not None:
            steps.append(int(step[2]))
    unknown = re.fullmatch(r"Object contains unknown field `(.+)`", text)
    if unknown:
        steps.append(unknown[1])
        text = "unknown field"
    return text[:1].lower() + text[1:], tuple(steps)
