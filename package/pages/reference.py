"""Generate reference pages from the code: commands, the Python interface, kernels, metrics."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import NamedTuple

import click

import engine
from engine.api.config import KubeletConfiguration
from engine.cli import COMMANDS, _kubengine
from engine.metrics import Registry
from engine.node import Node
from engine.runtime.hollow import HollowRuntime
from engine.server.http.exchange import Request, Response
from engine.server.routes import Routes

METRICS = "<!-- metrics -->"
_ROOT = Path(__file__).parents[2]
_PAGES = ("/metrics", "/metrics/probes", "/metrics/resource", "/metrics/cadvisor")


class Family(NamedTuple):
    """Describe a metric as scrapers see it."""

    page: str
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def commands() -> str:
    """Return the page with the help of each command, that of `kubengine` first."""
    parts = ["# Commands\n\nThe help of each command, as `--help` prints it."]
    waiting = [(_kubengine, click.Context(_kubengine, info_name="kubengine", max_content_width=110))]
    while waiting:
        command, context = waiting.pop(0)
        depth = context.command_path.count(" ")
        if depth:
            parts.append(f"{'##' if depth == 1 else '###'} {context.command_path}")
        parts.append(f"```text\n{command.get_help(context)}\n```")
        if isinstance(command, click.Group):
            names = sorted(COMMANDS) if command is _kubengine else command.list_commands(context)
            below = ((name, command.get_command(context, name)) for name in names)
            waiting[:0] = [
                (one, click.Context(one, parent=context, info_name=name, max_content_width=110))
                for name, one in below
                if one is not None
            ]
    return "\n\n".join(parts) + "\n"


def python() -> str:
    """Return the page with the names of `engine` and `engine.testing` and their docstrings."""
    parts = [
        "# Python",
        "What `import engine` and `engine.testing` offer. Each name is loaded when it is first used.",
    ]
    for face in (engine, importlib.import_module("engine.testing")):
        parts += [f"## {face.__name__}", _code(inspect.getdoc(face) or "")]
        for name in face.__all__:
            thing = getattr(face, name)
            parts += [f"### {name}", f"`{thing.__module__}`", _code(f"{name}{_signature(thing)}", "python")]
            parts.append(_code(inspect.getdoc(thing) or ""))
    return "\n\n".join(parts) + "\n"


def kernels() -> str:
    """Return the page with each kernel in `engine/_fast` and the rule in its plain twin."""
    parts = ["# Kernels", _code(inspect.getdoc(importlib.import_module("engine._fast")) or "")]
    for path in sorted((_ROOT / "engine/_fast").rglob("_*_py.py")):
        name = path.stem.removeprefix("_").removesuffix("_py")
        module = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        parts += [f"## {name.replace('_', ' ')}", f"`{module}`", _code(ast.get_docstring(tree) or "")]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                docstring = ast.get_docstring(node)
                parts.append(_code(f"def {node.name}({ast.unparse(node.args)})", "python"))
                if docstring:
                    parts.append(_code(docstring))
    return "\n\n".join(parts) + "\n"


def metrics() -> str:
    """Return a table for each page of metrics, as a running node serves them."""
    parts = []
    families = families_of_a_node()
    for page in _PAGES:
        rows = sorted(family for family in families if family.page == page)
        parts.append(f"### {page}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|")
        parts[-1] += "".join(
            f"\n| `{row.name}` | {row.kind} | {' '.join(f'`{each}`' for each in row.labels)} | {row.help} |"
            for row in rows
        )
    return "\n\n".join(parts) + "\n"


def families_of_a_node() -> list[Family]:
    """Return the metrics that a node without a cluster serves, and those that only the code registers."""
    with tempfile.TemporaryDirectory() as directory:
        registry, pages = asyncio.run(_scraped(Path(directory)))
    counted = {name: metric.labels for name, metric in registry.metrics.items()}
    shown = [family for page, text in pages.items() for family in _parsed(page, text, counted)]
    known = {family.name for family in shown}
    return shown + [family for family in _registered() if family.name not in known]


async def _scraped(directory: Path) -> tuple[Registry, dict[str, str]]:
    (directory / "pods").mkdir()
    config = KubeletConfiguration(
        static_pod_path=str(directory / "pods"),
        pod_logs_dir=str(directory / "logs"),
        resolv_conf="",
        cgroups_per_qos=False,
        enforce_node_allocatable=[],
    )
    socket = directory / "cri.sock"
    async with HollowRuntime(socket):
        node = Node(config=config, runtime_endpoint=str(socket), root=directory / "node", name="n")
        await node.start()
        try:
            pages = {}
            for page in _PAGES:
                response = await Routes(node).answer(Request("GET", page))
                assert isinstance(response, Response)
                assert response.status == 200, response.body
                assert not isinstance(response.body, AsyncGenerator)
                body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
                pages[page] = body.decode()
            return node.registry, pages
        finally:
            await node.stop()


def _parsed(page: str, text: str, counted: dict[str, tuple[str, ...]]) -> Iterator[Family]:
    """Yield the metrics of a page; labels of one without samples come from the registry."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    for name, help in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE):
        sample = re.search(rf"^{name}\{{(.*)\}}", text, re.MULTILINE)
        labels = tuple(re.findall(r'(\w+)="', sample[1])) if sample else counted.get(name, ())
        yield Family(page, name, kinds[name], labels, help)


def _registered() -> Iterator[Family]:
    """Yield the metrics in the code, such as those of a cluster or of cgroups, which not every node has."""
    for path in sorted((_ROOT / "engine").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                kind = node.func.attr
                arguments = [each.value if isinstance(each, ast.Constant) else each for each in node.args]
                if kind == "collected":
                    kind, *arguments = arguments
                match arguments:
                    case [str(name), str(help), *rest] if kind in ("counter", "gauge", "histogram"):
                        labels = ast.literal_eval(rest[0]) if rest and isinstance(rest[0], ast.Tuple) else ()
                        yield Family("/metrics", name, kind, labels, help)


def _signature(thing: object) -> str:
    try:
        return re.sub(r"'", "", str(inspect.signature(thing)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""


def _code(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"
