"""`import engine`: cheap, whole, stable, and right as the README shows it."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import inspect
import io
import pydoc
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ForwardRef, get_args, get_origin

import pytest

import engine
import engine.testing
from engine.api.documents import as_written
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from tests.programs import printed

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "README.md").read_text().partition("## As a library")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
PAGE = ROOT / "docs" / "reference" / "library.md"
MARK = "<!-- signatures: python -m tests.project.test_face writes them"
LIMITED = {"name": "main", "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}}


def test_importing_it_loads_nothing_of_weight() -> None:
    """A few modules of the standard library: 3 ms; each of its own names is loaded on first use."""
    program = (
        "import importlib, typing, sys; before = {*sys.modules}; import engine, engine.testing\n"
        "print(sorted({*sys.modules} - before))"
    )
    assert printed(program) == "['engine', 'engine.testing']"


def test_decisions_load_neither_the_agent_nor_a_client_of_the_runtime() -> None:
    names = ("AdmittedPods", "decide", "preempt", "rank", "cgroup_tree", "pod_values", "container_resources")
    program = f"import sys, engine; [getattr(engine, name) for name in {names}]; print(sorted(sys.modules))"
    loaded = eval(printed(program))
    parts = ("engine.node", "engine.transport", "engine.cri", "engine.plan", "grpc", "pyarrow", "asyncio")
    assert [name for name in loaded if name.startswith(parts)] == []


def test_there_are_three_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_readme_prints_what_it_shows(example: str) -> None:
    shown = re.findall(r"^print\(.*\)  # (.+)$", example, re.MULTILINE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})
    assert printed.getvalue().splitlines() == shown


def test_the_cgroups_example_equals_the_command(tmp_path: Path) -> None:
    manifest = tmp_path / "pod.json"
    manifest.write_text(
        '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": ['
        '{"name": "main", "image": "x", "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}}]}}'
    )
    command = [
        sys.executable,
        "-m",
        "engine.cli",
        "cgroups",
        "plan",
        "--cgroup",
        "v1",
        "-f",
        str(manifest),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    shares = engine.pod_values({"spec": {"containers": [LIMITED]}}).cpu_shares
    assert shares == 512
    assert f'"cpu.shares": "{shares}"' in done.stdout


@pytest.mark.parametrize("door", ["dict", "convert", "typed"])
def test_every_door_applies_the_defaults_of_an_api_server(door: str) -> None:
    plain: dict[str, Any] = {"metadata": {"name": "p", "uid": "p"}, "spec": {"containers": [LIMITED]}}
    pod: Any = {
        "dict": lambda: plain,
        "convert": lambda: engine.convert(plain, Pod, "p"),
        "typed": lambda: as_written(plain, Pod, "p"),
    }[door]()
    assert engine.pod_values(pod).cpu_shares == 512
    assert engine.container_resources(pod, "main", engine.ContainerRules(2**30)).cpu_shares == 512
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "9"}}}
    admitted = engine.AdmittedPods(node, [pod])
    assert admitted.used["cpu"] == 500
    other: Any = {"metadata": {"name": "q"}, "spec": {"containers": [LIMITED, LIMITED | {"name": "b"}]}}
    assert not engine.decide(admitted, other).admit
    admitted.add({**other, "spec": {"containers": [LIMITED]}})
    assert admitted.used["cpu"] == 1000
    if door == "typed":
        assert not pod.spec.containers[0].requests, "the caller's object stays as it was"


def test_wrong_documents_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"pod web: spec\.containers: Expected"):
        engine.pod_values({"metadata": {"name": "web"}, "spec": {"containers": 3}})
    with pytest.raises(InvalidInput, match="pod web: has no container 'x'"):
        engine.container_resources({"metadata": {"name": "web"}}, "x", engine.ContainerRules(1))
    with pytest.raises(InvalidInput, match="must be <= 100%"):
        engine.thresholds_from_config({"evictionHard": {"memory.available": "200%"}})
    with pytest.raises(InvalidInput, match="preempt: Object contains unknown field `crtical`"):
        engine.ask(engine.Cluster(engine.synthesize(1, 1)), "preempt", {"crtical": True})


def test_a_probe_runs_from_the_face() -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Teapot)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        port = server.server_port
        probes = {
            "readinessProbe": {"httpGet": {"port": port}},
            "livenessProbe": {"tcpSocket": {"port": port}},
        }
        exec_probe = {"startupProbe": {"exec": {"command": ["true"]}}}
        container = {"name": "main", **probes, **exec_probe}
        specs = {spec.type: spec for spec in engine.probe_specs({"spec": {"containers": [container]}})}
        assert asyncio.run(engine.run_probe(specs["liveness"], "127.0.0.1")) == ("success", "")
        failed = asyncio.run(engine.run_probe(specs["readiness"], "127.0.0.1"))
        assert failed == ("failure", "HTTP probe failed with statuscode: 418")
        with pytest.raises(
            InvalidInput, match="main startup: a command probe needs the pod's container runtime"
        ):
            asyncio.run(engine.run_probe(specs["startup"], "127.0.0.1"))
        with pytest.raises(InvalidInput, match="needs a host"):
            asyncio.run(engine.run_probe(specs["liveness"]))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Teapot(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(418)

    def log_message(self, *_: object) -> None:
        pass


def test_exactly_the_expected_names_exist() -> None:
    for face in (engine, engine.testing):
        assert {name for name in dir(face) if not name.startswith("_")} == set(face.__all__)
        for name in face.__all__:
            assert getattr(face, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Kubelet'"):
        engine.Kubelet  # noqa: B018


def test_it_has_the_name_of_the_distribution_too() -> None:
    import kubengine

    assert kubengine.__all__ == engine.__all__
    assert {name for name in dir(kubengine) if not name.startswith("_")} == set(kubengine.__all__)
    assert kubengine.decide is engine.decide
    with pytest.raises(AttributeError, match="no attribute 'cli'"):
        kubengine.cli  # noqa: B018


def test_help_shows_every_name() -> None:
    text = pydoc.plain(pydoc.render_doc(engine))
    missing = [name for name in engine.__all__ if f"`{name}`" not in (engine.__doc__ or "")]
    assert not missing
    assert "decide" in text


def test_the_planner_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import engine\n"
        "engine.pod_values({'spec': {'containers': []}})\n"
        "try: engine.ask\nexcept ImportError as error: print(error)\n"
    )
    assert printed(program) == "engine.ask needs pyarrow: pip install 'kubengine[plan]'"


def signatures() -> str:
    """Return each public name with its types, and the public methods and properties of classes."""
    lines = []
    for face in (engine, engine.testing):
        for name in sorted(face.__all__):
            thing = getattr(face, name)
            lines.append(f"{face.__name__}.{name}{_signature(thing)}")
            if inspect.isclass(thing) and issubclass(thing, Enum):
                lines += [f"{face.__name__}.{name}.{member.name} = {member.value!r}" for member in thing]
            elif inspect.isclass(thing) and thing not in KUBERNETES_TYPES:
                lines += [f"{face.__name__}.{name}.{member}" for member in _members(thing)]
    return "\n".join(lines)


def _members(kind: type) -> Iterator[str]:
    for name, member in sorted(vars(kind).items()):
        if name[0].islower():  # others are private, or called over gRPC
            if inspect.isfunction(member):
                yield name + _signature(member)
            elif isinstance(member, property) and member.fget is not None:
                yield f"{name}: {_type(inspect.get_annotations(member.fget)['return'])}"


KUBERNETES_TYPES = (Pod, engine.KubeletConfiguration, engine.KubengineConfiguration)


def _signature(thing: Any) -> str:
    """Return the names, kinds, types and defaults of the parameters, and the type of the result."""
    if thing in KUBERNETES_TYPES or (inspect.isclass(thing) and issubclass(thing, Enum)):
        return ""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    result = signature.return_annotation
    result = "" if result in (None, "None", inspect.Signature.empty) else f" -> {_type(result)}"
    own = [each for each in signature.parameters.values() if each.name != "self"]
    bare = [each.replace(annotation=Written(_type(each.annotation)), default=_default(each)) for each in own]
    text = str(inspect.Signature(bare))
    return re.sub(r": \?(?=[,)])", "", text) + result


class Written(str):
    """Text that signatures show without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _type(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "?"
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:engine|pathlib)\.(?:[a-z_]+\.)*(?=[A-Z])", "", text)
    text = re.sub(r"Annotated\[(.*?), msgspec\.Meta\([^)]*\)\]", r"\1", text)
    return re.sub(r"Optional\[(\w+)\]", r"\1 | None", re.sub(r"(?:collections\.abc|typing)\.", "", text))


def _default(parameter: inspect.Parameter) -> Any:
    text = repr(parameter.default)
    return (
        Written("…")
        if text.startswith("<") and parameter.default is not inspect.Parameter.empty
        else parameter.default
    )


def test_the_face_is_as_recorded() -> None:
    """A change is a decision: `python -m tests.project.test_face` writes the record again, and
    `docs/reference/versioning.md` says which version number it needs."""
    assert PAGE.read_text().partition(MARK)[2] == f" -->\n\n```text\n{signatures()}\n```\n"


def test_every_name_has_a_stability() -> None:
    rows = re.findall(r"^\| (`.*?) \| .* \| (\w+) \|$", PAGE.read_text(), re.MULTILINE)
    names = [name for cell, _ in rows for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(names) == sorted([*engine.__all__, *engine.testing.__all__])
    assert {stability for _, stability in rows} == {"stable", "provisional"}


def test_a_deprecated_name_works_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine._RENAMED, "would_fit", "decide")
    with pytest.warns(DeprecationWarning, match=r"engine.would_fit is deprecated; use engine.decide") as seen:
        assert engine.would_fit is engine.decide
    assert seen[0].filename == __file__


if __name__ == "__main__":
    before = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(f"{before}{MARK} -->\n\n```text\n{signatures()}\n```\n")
