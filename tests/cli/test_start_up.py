"""What `kubengine run` leaves out at its start comes when it is asked for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.scripts import output_of

PLAIN_AGENT = """
import os, pathlib, sys
from engine.cli.agent.start_up import lean_imports
with lean_imports():
    import asyncio
    import engine.api.documents, engine.cli.agent.process, engine.cli.run
assert "OPENBLAS_NUM_THREADS" not in os.environ

async def plain():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    writer.close()
    server.close()

asyncio.run(plain())
unneeded = {
    "_ssl", "_hashlib", "yaml", "http.client", "email", "rich", "jeepney", "engine.runtime.embedded",
    "google.protobuf.text_format", "grpc", "numpy.version", "typing_extensions", "importlib.metadata",
    "pickle", "lzma", "engine.node.stats.summary", "engine.node.logs.container_access",
    "engine.csi.drivers",
    "pwd",
    *("engine._fast.preemption._preemption_c", "engine._fast.preemption._predicates_c"),
    *("engine._fast.devices._topology_c", "engine._fast.pinning._cpu_assignment_c"),
}
assert "libgomp" not in pathlib.Path("/proc/self/maps").read_text()
assert "type_info" not in vars(sys.modules["msgspec.inspect"])
print(sorted(unneeded & set(sys.modules)))
"""

GENERATED = """
import sys
START
print(sorted(
    f"{name}.{attribute}"
    for name, module in list(sys.modules.items()) if name.startswith("engine.")
    for attribute, value in vars(module).items()
    if isinstance(value, type) and value.__module__ == name and hasattr(value, "__dataclass_fields__")
))
"""

LOADED = """
import json, os, sys
before = set(sys.modules)
START
new = {name: module for name, module in list(sys.modules.items()) if name not in before}
ours = [name for name in new if name.partition(".")[0] not in sys.stdlib_module_names]
files = [module.__file__ for module in new.values() if getattr(module, "__file__", None)]
print(json.dumps([sorted(ours), sorted(new), sum(map(os.path.getsize, files))]))
"""

STARTS = {
    "library": "import engine",
    "help": "from engine.cli import _kubengine\nimport click\n_kubengine.get_help(click.Context(_kubengine))",
    "agent": (
        "from engine.cli.agent.start_up import lean_imports\n"
        "with lean_imports():\n"
        "    import asyncio, engine.api.documents, engine.cli.agent.process, engine.cli.run"
    ),
}

COMPILED = """
import re
from re import _compiler
from engine.cli.agent import start_up
compiled, compile = [], _compiler.compile
_compiler.compile = lambda pattern, flags=0: compiled.append(pattern) or compile(pattern, flags)
START
print(len(compiled))
"""

PATTERNS_AFTERWARDS = """
import re
from engine.cli.agent.start_up import lean_imports
with lean_imports():
    words, octets = re.compile(r"([a-z]+)-(?P<last>\\d+)", re.IGNORECASE), re.compile(b"[0-9]")
assert isinstance(re.compile("a"), re.Pattern)
for _ in range(2):
    assert words.fullmatch("Pod-7")["last"] == "7"
    assert words.fullmatch("Pod-x") is None
    assert words.sub(r"\\1", "a pod-7, b-8") == "a pod, b"
assert (words.pattern, words.groups, dict(words.groupindex)) == (r"([a-z]+)-(?P<last>\\d+)", 2, {"last": 2})
assert octets.findall(b"a1b2") == [b"1", b"2"]
"""

NUMPY_AFTERWARDS = """
from __future__ import annotations
from engine.cli.agent.start_up import lean_imports
with lean_imports():
    import os, threading
    import numpy as np
    from numpy.typing import NDArray
    from engine.tables import PodTable

def numbers() -> NDArray[np.int64]:
    return np.arange(4)

before = threading.active_count(), len(os.listdir("/proc/self/task"))
assert isinstance(numbers(), np.ndarray)
assert np.linalg.norm(np.array([3.0, 4.0])) == 5.0
assert PodTable().rows().dtype == np.int32
assert "OPENBLAS_NUM_THREADS" not in os.environ
assert before == (threading.active_count(), len(os.listdir("/proc/self/task")))
"""

TLS_AFTERWARDS = """
from engine.cli.agent.start_up import lean_imports
with lean_imports():
    import asyncio, ssl, sys
    from engine.probes.http_get import insecure_tls

async def answer(reader, writer):
    writer.write(b"hello " + (await reader.readline()))
    writer.close()

async def main():
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(sys.argv[1])
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serving)
    port = server.sockets[0].getsockname()[1]
    tls = insecure_tls()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="localhost")
    assert isinstance(writer.get_extra_info("ssl_object"), ssl.SSLObject)
    writer.write(b"world\\n")
    print((await reader.read()).decode().strip())
    writer.close()
    server.close()

asyncio.run(main())
"""


def test_an_agent_starts_without_what_it_may_never_need() -> None:
    assert output_of(PLAIN_AGENT) == "[]"


@pytest.mark.parametrize(
    ("start", "ours", "modules", "kilobytes"),
    [("library", 1, 21, 300), ("help", 20, 120, 4_000), ("agent", 520, 640, 15_000)],
)
def test_a_start_loads_no_more_than_its_budget(start: str, ours: int, modules: int, kilobytes: int) -> None:
    """Each module costs an agent 0.2 ms or more before it answers.

    `ours` are all that are not Python's own, of which later versions load more than 3.11; the files are
    compiled modules and sources.
    """
    our_names, names, size = json.loads(output_of(LOADED.replace("START", STARTS[start])))
    assert len(our_names) <= ours, our_names
    assert len(names) <= modules, names
    assert size <= kilobytes * 1000


def test_no_class_of_an_agent_is_generated_as_source_when_it_starts() -> None:
    """A dataclass takes about 1 ms; a `msgspec.Struct` takes 17 µs."""
    assert output_of(GENERATED.replace("START", STARTS["agent"])) == "[]"


def test_an_agent_compiles_few_regular_expressions_before_it_uses_them() -> None:
    """Of about 70, these are used while modules load, or are Python's own that were there before."""
    assert int(output_of(COMPILED.replace("START", STARTS["agent"]))) <= 12


def test_regular_expressions_work_in_full_once_they_are_used() -> None:
    output_of(PATTERNS_AFTERWARDS)


def test_numpy_works_in_full_and_without_threads_once_it_is_asked_for() -> None:
    output_of(NUMPY_AFTERWARDS)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_works_in_full_once_it_is_asked_for(tmp_path: Path) -> None:
    pair = tmp_path / "pair.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost"
    subprocess.run([*make.split(), "-keyout", pair, "-out", pair], check=True, capture_output=True)
    assert output_of(TLS_AFTERWARDS, str(pair)) == "hello world"
