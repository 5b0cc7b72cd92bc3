"""Define the `kubengine` command: one file per subcommand, imported only when that subcommand runs.

`COMMANDS` maps each subcommand to the line that `--help` shows. The module for `image-gc` is
`engine.cli.image_gc` and exports a click command named `command`. Commands use public package interfaces
only, and query a running agent through `engine.cli.agent.client`.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from engine.api.errors import Bug, InvalidInput, KubengineError

__all__ = ["COMMANDS", "KUBECTL", "kubectl_plugin", "main"]

KUBECTL = "kubectl"
"""The object of a click context if kubectl runs the program as a plugin."""

COMMANDS: dict[str, str] = {
    "preempt": "Show whether a pod fits on a node, and which pods it would preempt.",
    "eviction": "Show eviction thresholds, the distance to each, and which pods would go first.",
    "images": "Show images and what protects them; `images gc` collects.",
    "cpus": "Show which containers have which CPUs, as a map of nodes and caches.",
    "bench": "Measure a node agent under load, against a kubelet or at growing density.",
    "cgroups": "Show the cgroup tree, find its faults, plan its values.",
    "device-plugin": "Serve a sample device plugin, to try an agent with.",
    "decisions": "Show the agent's decisions and their reasons; `--follow` keeps printing.",
    "devices": "Show device plugin resources, their devices and holders.",
    "completion": "Print the shell completion script for bash, zsh or fish.",
    "kubelet": "Run the node agent with the kubelet's flags and configuration files.",
    "plan": "What-ifs over a whole cluster: preemption, eviction, GC, cgroups, drains.",
    "probes": "Show probes, their state and cost; measure a target.",
    "runtime": "Serve the Container Runtime Interface from the embedded runtime.",
    "run": "Run the node agent on a directory of Pod manifests.",
    "shadow": "Repeat the decisions of a live kubelet, and compare them.",
    "status": "Show the pods of a running agent.",
    "takeover": "Show what a takeover of a kubelet's node would change.",
    "why": "Explain why a pod was evicted, preempted, refused or restarted.",
}

PLANNER_LIBRARIES = ("pyarrow",)
"""Libraries that a node can do without; the extra `plan` installs them."""


class _ReaderGone(Exception):
    """Report that the reader of standard output has closed it. Not a BrokenPipeError, which click treats as a
    failure.
    """


class WrongUsage(click.ClickException):
    """Report an invalid option in one line."""

    exit_code = 2


class _LazyGroup(click.Group):
    """List subcommands in the help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = import_module(f"engine.cli.{cmd_name.replace('-', '_')}")
        except ModuleNotFoundError as error:
            # A module of the engine that is missing is a fault of the installation, not a missing extra.
            if error.name not in PLANNER_LIBRARIES:
                raise
            raise click.ClickException(
                f"{cmd_name} needs {error.name}, which is not installed: pip install 'kubengine[plan]' "
                "(Debian: apt install kubengine-plan)"
            ) from error
        command: click.Command = module.command
        command.name = cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            from engine.cli.output.suggestions import check_command

            check_command(self, ctx, args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in sorted(COMMANDS)])

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        # `--help` and `--version` print while the context is made.
        try:
            return super().make_context(*arguments, **options)
        except BrokenPipeError:
            raise _ReaderGone from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            raise _ReaderGone from None
        except Exception as error:
            if ctx.params["debug"]:
                raise
            # Errors of the libraries name an option by its dashes; a wrong file is no wrong usage.
            wrong = isinstance(error, InvalidInput) and error.subject.startswith("-")
            failed = WrongUsage if wrong else click.ClickException
            raise failed(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    if isinstance(error, KubengineError) and not isinstance(error, Bug):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return f"unexpected {type(error).__name__}: {error}. `kubengine --debug …` shows where; please report it."


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kubengine", message="kubengine %(version)s")
@click.option("--debug", is_flag=True, help="Show a traceback when a command fails.")
def _kubengine(debug: bool) -> None:
    """Run a node resource engine for Kubernetes: a node agent, its kernels and a planner.

    Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """


class _PluginGroup(_LazyGroup):
    """Offer the planner's commands as those of `kubectl kubengine`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._plan(ctx).list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._plan(ctx).get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return self._plan(ctx).resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Group.format_commands(self, ctx, formatter)

    def _plan(self, ctx: click.Context) -> click.Group:
        plan = super().get_command(ctx, "plan")
        assert isinstance(plan, click.Group)
        return plan


@click.group(cls=_PluginGroup, context_settings={"help_option_names": ["-h", "--help"], "obj": KUBECTL})
@click.version_option(package_name="kubengine", message="kubengine %(version)s")
@click.option("--debug", is_flag=True, help="Show a traceback when a command fails.")
def _plugin(debug: bool) -> None:
    """Answer what-ifs over the running cluster: which pods are preempted or evicted, what fits.

    Without a file, a command reads the cluster of kubectl's current context, or of --context. To ask many
    questions, save it once: kubectl kubengine snapshot -o cluster.kes
    """


def main() -> None:
    """Run as the console script."""
    _run(_kubengine, "kubengine")


def kubectl_plugin() -> None:
    """Run as the plugin `kubectl kubengine`."""
    _run(_plugin, "kubectl kubengine")


def _run(command: click.Group, name: str) -> NoReturn:
    try:
        status = command.main(prog_name=name, standalone_mode=False)
        # Here, where a closed pipe is still caught: at the interpreter's end it would print a traceback.
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (_ReaderGone, BrokenPipeError):
        _exit_without_reader()
    sys.exit(status if isinstance(status, int) else 0)


def _exit_without_reader() -> NoReturn:
    """Exit silently with the status of a command that SIGPIPE ends, because nobody reads the output."""
    # The interpreter flushes standard output once more, which must find somewhere to go.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(128 + signal.SIGPIPE)
