"""Implement `kubengine cgroups`: show the live tree and its faults, and the values that pods would get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from engine.api.amounts.sizes import quantity_size
from engine.cli.agent.client import AgentClient, agent_option, json_option, print_json

if TYPE_CHECKING:
    from engine.api.pod import Pod
    from engine.api.quantity import Quantity
    from engine.cgroups.manager import CgroupManager

_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)
config_option = click.option(
    "--config", "configs", type=_FILES, multiple=True, help="KubeletConfiguration or KubengineConfiguration."
)


@click.group(invoke_without_command=True)
@json_option
@agent_option
@click.option("--pod", default="", metavar="POD", help="Only this pod (namespace/name, name or uid).")
@click.pass_context
def command(context: click.Context, agent: AgentClient, as_json: bool, pod: str) -> None:
    """Show the cgroup tree of a running agent: wanted values, and actual ones where they differ."""
    if context.invoked_subcommand is not None:
        return
    described = agent.describe("cgroups", **({"pod": pod} if pod else {}))
    if as_json:
        print_json(described)
        return
    if not described["enabled"]:
        click.echo(f"no cgroups: {described['reason']}")
        return
    click.echo(
        f"cgroup v{described['version']}, driver {described['driver']}, root {described['root']}, "
        f"CPU weights {described['cpuWeightFormula']} ({described['cpuWeightReason']})"
    )
    for controller in described["lacking"]:
        click.echo(f"warning: no {controller} controller here; its values are not enforced", err=True)
    for uid, refusal in described["refusals"].items():
        click.echo(f"warning: pod {uid}: {refusal}", err=True)
    _print_table(_live_rows(described["groups"]))


@command.command()
@json_option
@agent_option
@config_option
@click.option("--fix", is_flag=True, help="Repair the faults that can be repaired.")
@click.option(
    "--pods", "pod_file", type=_FILES, help="Without an agent: the node's pods, as `kubectl -o json`."
)
@click.option("--root", help="Without an agent: where cgroups are mounted.")
def check(
    agent: AgentClient,
    as_json: bool,
    configs: tuple[Path, ...],
    fix: bool,
    pod_file: Path | None,
    root: str | None,
) -> None:
    """Find pods and containers whose values differ from the wanted ones, a starved host, reservations that
    nothing enforces, changed files and leftover groups. Exit status 1 if a fault remains; risks are only
    reported.

    Asks the running agent; with --pods it checks a node that another agent runs.
    """
    if pod_file is None:
        findings = agent.act("cgroups", "check", **({"fix": "true"} if fix else {}))
    else:
        manager, pods = _observed_node(configs, pod_file, root)
        findings = [finding.as_dict() for finding in manager.check(pods, fix=fix)]
        manager.stop()
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            state = "risk" if finding["risk"] else "fixable with --fix" if finding["fixable"] else "fault"
            state = "fixed" if finding["fixed"] else state
            click.echo(f"{finding['kind']} ({state}): {finding['path']}\n    {finding['meaning']}")
        if not findings:
            click.echo("no faults")
    if any(not finding["fixed"] and not finding["risk"] for finding in findings):
        raise click.exceptions.Exit(1)


def _observed_node(
    configs: tuple[Path, ...], pod_file: Path, root: str | None
) -> tuple[CgroupManager, list[Pod]]:
    from engine.api.defaults import apply_defaults
    from engine.api.documents import load_config, load_pods
    from engine.api.errors import InvalidInput
    from engine.cgroups.manager import CgroupManager
    from engine.host.cgroupfs.mounts import find_mounts
    from engine.node.nodeinfo.machine import capacity, max_pids

    config, kubengine = load_config(list(configs))
    pods, _ = load_pods(pod_file)
    for pod in pods:
        apply_defaults(pod)
        # The uid is part of the cgroup's name.
        if not pod.uid:
            raise InvalidInput(f"{pod.full_name}: metadata.uid: expected a uid", subject=str(pod_file))
    amounts: dict[str, Quantity | int] = {**capacity(Path("/"), config), "pid": max_pids()}
    manager = CgroupManager(
        config=config, section=kubengine.cgroups, capacity=amounts, mounts=find_mounts(root)
    )
    manager.adopt(pods)
    return manager, pods


@command.command()
@json_option
@config_option
@click.option(
    "-f", "--filename", "files", type=_FILES, multiple=True, required=True, help="Pods, YAML or JSON."
)
@click.option("--cgroup", "version", type=click.Choice(["v1", "v2"]), default="v2", show_default=True)
@click.option(
    "--cpu-weight",
    type=click.Choice(["linear", "logarithmic"]),
    help="The weight formula for v2; by default as configured, else that of the OCI runtime here.",
)
@click.option("--cpu", help="The node's CPUs; by default this machine's.", metavar="QUANTITY")
@click.option("--memory", help="The node's memory; by default this machine's.", metavar="QUANTITY")
def plan(
    as_json: bool,
    configs: tuple[Path, ...],
    files: tuple[Path, ...],
    version: str,
    cpu_weight: str | None,
    cpu: str | None,
    memory: str | None,
) -> None:
    """Show the values that every group would have for these pods, without changing anything."""
    from engine.api.defaults import apply_defaults
    from engine.api.documents import load_config, load_pods
    from engine.api.errors import InvalidInput
    from engine.api.quantity import Quantity
    from engine.cgroups.formulas.runtime_formula import detect_formula
    from engine.cgroups.plan import plan as plan_groups
    from engine.node.nodeinfo import machine

    config, kubengine = load_config(list(configs))
    pods: list[Pod] = []
    for path in files:
        loaded, warnings = load_pods(path)
        for pod in loaded:
            apply_defaults(pod)
        pods += loaded
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
    capacity: dict[str, Quantity | int] = {
        **machine.capacity(Path("/"), config),
        "pid": machine.max_pids(),
    }
    for name, text in (("cpu", cpu), ("memory", memory)):
        if text:
            try:
                capacity[name] = Quantity.parse(text)
            except InvalidInput as error:
                raise InvalidInput(str(error), subject=f"--{name}") from None
    formula = cpu_weight or kubengine.cgroups.cpu_weight
    if formula == "auto":
        formula, _ = detect_formula(kubengine.cgroups.oci_runtime)
    groups = plan_groups(
        pods,
        config,
        kubengine.cgroups,
        capacity,
        version=1 if version == "v1" else 2,
        formula="linear" if formula == "linear" else "logarithmic",
    )
    if as_json:
        print_json([group.as_dict() for group in groups])
        return
    _print_table(
        Row(
            group.path,
            group.qos_class,
            {name: (text, text) for name, text in group.files.items()},
            group.pod if group.kind == "pod" else "",
        )
        for group in groups
    )


class Row(NamedTuple):
    """Hold one group to show; `files` are (wanted, actual) texts."""

    path: str
    qos_class: str
    files: Mapping[str, tuple[str, str]]
    pod: str = ""


def _live_rows(groups: Iterable[Mapping[str, Any]]) -> Iterable[Row]:
    for group in groups:
        files = {name: (text["wanted"], text["actual"] or "-") for name, text in group["files"].items()}
        yield Row(group["path"], group["qosClass"], files, group.get("pod", ""))
        for container in group.get("containers", ()):
            actual = {name: (text, text) for name, text in container["files"].items() if text is not None}
            yield Row(container["path"], "", actual)


def _print_table(rows: Iterable[Row]) -> None:
    """Print one line per group, indented by depth; a value that differs from the wanted one reads
    `actual≠wanted`.
    """
    from rich.table import Table

    from engine.cli.output.console import table_console

    # By the parts of the path: `-` and `.` sort before `/`, and would put a group before its parent's others.
    listed = sorted(rows, key=lambda row: row.path.split("/"))
    columns = list(dict.fromkeys(name for row in listed for name in row.files))
    top = listed[0].path.count("/") if listed else 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("GROUP", "POD", "QOS"):
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in listed:
        depth = row.path.count("/") - top
        label = "  " * depth + _short(row.path.rpartition("/")[2]) if depth > 0 else row.path
        cells = [_cell(name, row.files.get(name)) for name in columns]
        table.add_row(label, row.pod, row.qos_class, *cells)
    table_console(400).print(table, soft_wrap=True)


def _short(name: str) -> str:
    """Shorten a container's id to its first characters, which are enough to tell containers apart."""
    return f"{name[:12]}…" if len(name) > 60 and name.isalnum() else name


def _cell(name: str, texts: tuple[str, str] | None) -> str:
    if texts is None:
        return ""
    wanted, actual = (_readable(name, text) for text in texts)
    return actual if actual == wanted else f"[red]{actual}≠{wanted}[/red]"


def _readable(name: str, text: str) -> str:
    if text == "-1":
        return "max"
    if text.isdigit() and name.startswith(("memory.", "hugetlb.")) and int(text) >= 1 << 20:
        return quantity_size(int(text))
    return text
