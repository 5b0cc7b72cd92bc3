"""Files of variables: the kubelet's syntax, read beneath their volume and bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput
from engine.api.pod import Container, EnvVar, EnvVarSource, Pod
from engine.api.references import FileKeySelector
from engine.node.spec.env_file import LONGEST_LINE, EnvFile, value_of
from engine.node.spec.environment import EnvSources, container_environment
from engine.node.volumes.env_files import LARGEST, env_files


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (b"A='1'\nB='2'\n", b"B", b"2"),
        (b"A='1'", b"A", b"1"),
        (b"  \t A='1'\n", b"A", b"1"),
        (b"# A='0'\n\n   \n  # B\nA='1'\n", b"A", b"1"),
        (b"A='first'\nA='second'\n", b"A", b"first"),
        (b"A='1'\nthis is wrong\n", b"A", b"1"),
        (b"A='1' # said\n", b"A", b"1"),
        (b"A='1'# said\n", b"A", b"1"),
        (b"A='1'\t \n", b"A", b"1"),
        (b"A='# no comment'\n", b"A", b"# no comment"),
        (b"A='$B \\n \"x\" `y`'\n", b"A", b'$B \\n "x" `y`'),
        (b"A='one\n  two\n\nB=3'\nB='4'\n", b"A", b"one\n  two\n\nB=3"),
        (b"A='one\nB=3'\nB='4'\n", b"B", b"4"),
        (b"A='one\r\ntwo'\r\nB='3'\r\n", b"A", b"one\ntwo"),
        (b"A='x=y'\n", b"A", b"x=y"),
        (b"A= '1'\n", b"A", b""),
        (b"A= anything\nB='2'\n", b"B", b"2"),
        (b"A=\t\n", b"A", b""),
        (b"A=''\n", b"A", b""),
        (b"", b"A", b""),
        (b"B='1'\n", b"A", b""),
        (b"A='\xff\x00'\n", b"A", b"\xff\x00"),
        (b"a b='1'\n", b"a b", b"1"),
        (b"A='" + b"x" * (LONGEST_LINE - 4) + b"'\n", b"A", b"x" * (LONGEST_LINE - 4)),
    ],
)
def test_values(text: bytes, key: bytes, value: bytes):
    assert value_of(text, key) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"A\n", "line 1: missing '='"),
        (b"\n\n  word\n", "line 3: missing '='"),
        (b"='1'\n", "line 1: empty variable name"),
        (b" \t='1'\n", "line 1: empty variable name"),
        (b"A ='1'\n", "line 1: whitespace before '=' is not allowed"),
        (b"A=1\n", "line 1: value must be enclosed in single quotes"),
        (b'A="1"\n', "line 1: value must be enclosed in single quotes"),
        (b"A=\n", "line 1: value must be enclosed in single quotes"),
        (b"A=$'1'\n", "line 1: value must be enclosed in single quotes"),
        (b"export A='1'\nB\n", "line 2: missing '='"),
        (b"A='1' B='2'\n", "line 1: unexpected content after closing quote"),
        (b"A='1'\\''2'\n", "line 1: unexpected content after closing quote"),
        (b"A='1\n2' x\n", "line 2: unexpected content after closing quote"),
        (b"\nA='1\n2\n", "line 2: unclosed single quote"),
        (b"A='" + b"x" * (LONGEST_LINE - 3) + b"'\n", "line 1: line is too long"),
    ],
)
def test_errors_name_their_line(text: bytes, words: str):
    with pytest.raises(InvalidInput) as wrong:
        value_of(text, b"KEY")
    assert str(wrong.value) == words


def from_file(optional: bool | None = None, key: str = "A") -> Container:
    source = EnvVarSource(file_key_ref=FileKeySelector("v", "env", key, optional))
    return Container(name="c", env=[EnvVar("X", value_from=source), EnvVar("Y", "<$(X)>")])


def variables(container: Container, text: bytes | None) -> dict[str, str]:
    given = EnvSources((), "", {}, files={("v", "env"): EnvFile("/v/env", text)})
    return container_environment(Pod(), container, given)


def test_a_variable_of_a_file_is_one_like_others():
    assert variables(from_file(), b"A='1'") == {"X": "1", "Y": "<1>"}
    assert variables(from_file(), b"A='\xff'") == {"X": "\udcff", "Y": "<\udcff>"}


def test_only_a_variable_may_be_missing():
    assert variables(from_file(optional=True), b"B='1'") == {"Y": "<$(X)>"}
    for text in (b"B='1'", b"A=''"):
        with pytest.raises(InvalidInput, match='environment variable key "A" not found in file "/v/env"'):
            variables(from_file(), text)
    for text in (None, b"A"):
        with pytest.raises(InvalidInput, match="couldn't parse env file"):
            variables(from_file(optional=True), text)
    with pytest.raises(InvalidInput, match='cannot find the volume "v" referenced by FileKeyRef'):
        container_environment(Pod(), from_file(), EnvSources((), "", {}))


def read(volume: Path, path: str = "env") -> bytes | None:
    source = EnvVarSource(file_key_ref=FileKeySelector("v", path, "A"))
    files = env_files(Container(name="c", env=[EnvVar("X", value_from=source)]), {"v": volume})
    return files["v", path].text


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("A='the host''s'")
    (tmp_path / "v").mkdir()
    return tmp_path / "v"


@pytest.mark.parametrize(
    "link",
    ["../secret", "{outside}/secret", "../../../../../../../../../..{outside}/secret", "d/../../secret"],
)
def test_links_do_not_lead_outside(volume: Path, link: str):
    (volume / "d").mkdir()
    (volume / "env").symlink_to(link.format(outside=volume.parent))
    assert read(volume) is None
    (volume / "to").symlink_to("..")
    assert read(volume, "to/secret") is None


def test_links_work_inside(volume: Path):
    (volume / "d").mkdir()
    (volume / "d/file").write_text("A='1'")
    (volume / "env").symlink_to("/d/file")
    assert read(volume) == b"A='1'"


@pytest.mark.parametrize("path", ["../secret", "d/../../secret", "..", "/../secret"])
def test_a_path_does_not_lead_outside(volume: Path, path: str):
    (volume / "d").mkdir()
    assert read(volume, path) is None


def test_only_a_regular_file_of_moderate_size_is_read(volume: Path, caplog: pytest.LogCaptureFixture):
    os.mkfifo(volume / "env")
    assert read(volume) is None
    (volume / "env").unlink()
    (volume / "env").mkdir()
    assert read(volume) is None
    assert read(volume, "gone") is None
    (volume / "big").write_bytes(b"#" * (LARGEST + 1))
    assert read(volume, "big") is None
    assert "not a regular file" in caplog.text
    assert "larger than" in caplog.text


def test_files_of_other_volumes_are_not_searched(volume: Path):
    assert env_files(from_file(), {}) == {}
