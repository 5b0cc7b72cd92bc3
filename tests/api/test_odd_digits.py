"""Texts that Python takes for numbers and others do not: `²`, `٣`, and five thousand digits.

`str.isdigit` accepts the first, of which `int` then raises ValueError; `int` accepts the second, and refuses
the third. Each reader of outside text treats all three as no number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from engine.api import cpu_set
from engine.api.errors import KubengineError
from engine.api.pod import Container, ContainerPort
from engine.api.quantity import decimal
from engine.cgroups.formulas.runtime_formula import formula_of
from engine.cli.agent.kubelet_flags import _reserved_memory
from engine.cri.paths import logged_attempts
from engine.csi.drivers import highest_version
from engine.metrics import Registry
from engine.node.sync.hooks import _port
from engine.node.volumes.project_ids import FIRST, NONE, ProjectIds
from engine.plan.claims.selectors import _semver
from engine.probes.spec import ProbeSpec
from engine.record.writer import SUFFIX, segments
from engine.runtime.images.store import StoredImage, _is_stale
from engine.runtime.requests import stop_signal
from engine.runtime.streaming.port_forward import SpdyForwarder
from engine.shadow.kinds.restarts import delay_in_message
from engine.shadow.page_server import PageServer
from engine.wire import cri_v1_pb2 as cri

ODD = {"superscript": "²", "arabic": "٣", "fullwidth": "\uff13", "endless": "9" * 5000}
REFUSED = object()


def _probe_port(text: str) -> object:
    return ProbeSpec("c", "liveness", "tcp", 1.0, 1.0, 0.0, 1, 1, None, port=text).resolve_port()


def _hook_port(text: str) -> object:
    return _port(text, Container(name="c", ports=[ContainerPort(name="web", container_port=80)]))


def _user(text: str) -> object:
    return StoredImage("sha256:0", {"User": text}, []).message().username == text


def _forwarded(text: str) -> object:
    return SpdyForwarder._on_open(cast("Any", None), 1, {"streamtype": ("data",), "port": (text,)})


READERS: dict[str, tuple[Callable[[str], object], object]] = {
    "a number": (decimal, None),
    "CPUs": (cpu_set.parse, REFUSED),
    "the end of a range of CPUs": (lambda text: cpu_set.parse(f"0-{text}"), REFUSED),
    "a probe's port": (_probe_port, REFUSED),
    "a hook's port": (_hook_port, None),
    "a forwarded port": (_forwarded, None),
    "an image's stop signal": (
        lambda text: stop_signal(cri.ContainerConfig(), {"StopSignal": text}),
        REFUSED,
    ),
    "an image's user": (_user, True),
    "--reserved-memory": (lambda text: _reserved_memory(f"{text}:memory=1Gi"), REFUSED),
    "the shadow's address": (lambda text: PageServer(f"127.0.0.1:{text}", {}), REFUSED),
    "a storage driver's version": (lambda text: highest_version([f"{text}.0.0", f"1.{text}.0"]), None),
    "a runtime's version": (lambda text: formula_of(f"runc version {text}.1.2"), None),
    "the kubelet's back-off": (
        lambda text: delay_in_message(f"back-off {text}s restarting failed container"),
        None,
    ),
    "a name of a log": (lambda text: logged_attempts([f"{text}.log"]), []),
    "a semantic version": (lambda text: _semver(f"1.0.{text}"), REFUSED),
    "a pre-release": (lambda text: _semver(f"1.0.0-{text}"), REFUSED),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
@pytest.mark.parametrize(("read", "expected"), READERS.values(), ids=READERS)
def test_odd_digits_are_no_number(read: Callable[[str], object], expected: object, text: str) -> None:
    if expected is not REFUSED:
        assert read(text) == expected
        return
    with pytest.raises((KubengineError, ValueError)) as caught:
        read(text)
    assert "invalid literal" not in str(caught.value)
    assert "Exceeds the limit" not in str(caught.value)


@pytest.mark.parametrize("text", ["²", "٣", "9" * 200])
def test_odd_names_of_files_are_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / f"{text}{SUFFIX}").touch()
    assert segments(tmp_path) == []
    assert _is_stale(Path(f"layer.{text}-0.partial"))


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_project_ids_take_none(tmp_path: Path, text: str) -> None:
    listed = tmp_path / "projid"
    listed.write_text(f"web:{text}\nold:{FIRST}\n")
    assert ProjectIds(tmp_path, NONE, Registry(), [listed])._used_ids() == {FIRST}
