"""What the documents name is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.api.config import KubeletConfiguration
from engine.api.documents import load_config, load_pods
from engine.api.kubengine_config import KubengineConfiguration
from engine.cli import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])
IDS = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]


def code(text: str) -> Iterator[str]:
    yield from re.findall(r"`([^`\n]+)`", text)
    for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
        yield from block.splitlines()


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_commands_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in code(document.read_text()):
        for word in re.findall(r"(?:^|\$ |/|sudo )kubengine ([a-z][a-z-]*)", line):
            assert word in COMMANDS, f"{document.name}: kubengine {word}"
        for word in re.findall(r"(?:^|\$ )make ([a-z][a-z-]*)", line):
            assert word in targets, f"{document.name}: make {word}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_differences_are_all_linked() -> None:
    index = (ROOT / "docs/differences.md").read_text()
    for part in (ROOT / "docs/differences.d").glob("*.md"):
        assert f"differences.d/{part.name}" in index, f"docs/differences.md does not name {part.name}"


def test_every_configuration_field_is_described() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    structs: list[type[msgspec.Struct]] = [KubeletConfiguration, KubengineConfiguration]
    names = []
    while structs:
        for field in msgspec.structs.fields(structs.pop()):
            names.append(field.encode_name)
            if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                structs.append(field.type)
    assert not [name for name in names if f"`{name}`" not in text]


def test_examples_load() -> None:
    manifests = sorted((ROOT / "examples/manifests").glob("*.yaml"))
    assert len(manifests) == 3
    for path in manifests:
        pods, warnings = load_pods(path)
        assert len(pods) == 1, path
        assert not warnings
    for path in (ROOT / "examples").glob("*config*.yaml"):
        load_config([path])
