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
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in code(document.read_text()):
        for word in re.findall(r"(?:^|\$ |/|sudo )kubengine ([a-z][a-z-]*)", line):
            assert word in COMMANDS, f"{document.name}: kubengine {word}"
        for word in re.findall(r"(?:^|\$ )make ([a-z][a-z0-9-]*)", line):
            of_package = word.startswith("test-") and (ROOT / "tests" / word.removeprefix("test-")).is_dir()
            assert word in targets or of_package, f"{document.name}: make {word}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_differences_are_all_linked() -> None:
    index = (ROOT / "docs/differences.md").read_text()
    for part in (ROOT / "docs/differences.d").glob("*.md"):
        assert f"differences.d/{part.name}" in index, f"docs/differences.md does not name {part.name}"


def engine_code() -> str:
    """Return the text of the package without the definitions of the configuration."""
    definitions = {"config.py", "kubengine_config.py"}
    files = [path for path in (ROOT / "engine").rglob("*.py") if path.name not in definitions]
    return "\n".join(path.read_text() for path in files)


def test_kubelet_fields_said_to_do_nothing_are_read_nowhere_and_the_others_somewhere() -> None:
    effective, idle = (
        set(re.findall(r"`(\w+)`", section))
        for section in re.split(
            r"^## .*\n", (ROOT / "docs/configuration.md").read_text(), flags=re.MULTILINE
        )[1:3]
    )
    read_elsewhere = {"apiVersion", "kind", "featureGates"}  # by the loader and by `config.gate`
    used = set(re.findall(r"\b_?config\.(\w+)", engine_code()))
    for field in msgspec.structs.fields(KubeletConfiguration):
        name = field.encode_name
        read = name in read_elsewhere or field.name in used
        expected = (True, False) if read else (False, True)
        assert (name in effective, name in idle) == expected, f"{name}: {'' if read else 'not '}read"


def test_every_field_of_our_own_configuration_is_read() -> None:
    code = engine_code()
    named, used = (set(re.findall(rf"{holder}\.(\w+)", code)) for holder in ("", "section"))
    for section in msgspec.structs.fields(KubengineConfiguration)[2:]:
        assert section.name in named, section.encode_name
        if isinstance(section.type, type) and issubclass(section.type, msgspec.Struct):
            for field in msgspec.structs.fields(section.type):
                assert field.name in used, f"{section.encode_name}.{field.encode_name}"


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
    configs = sorted((ROOT / "examples").glob("*config*.yaml"))
    assert configs
    for path in configs:
        load_config([path])
