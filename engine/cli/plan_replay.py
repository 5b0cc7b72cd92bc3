"""Implement `kubengine plan replay`: play records of nodes again, also under another configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engine.api.defaults import apply_defaults
from engine.api.documents import load_config
from engine.api.documents.reader import load_pods
from engine.cli.plan import answer_options, computing, deliver
from engine.plan.replay.answer import replay_answer
from engine.plan.replay.recorded import read_recorded

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(epilog="Example: kubengine plan replay /var/lib/kubengine/record --config next.yaml --explain")
@click.option("--config", type=_FILE, help="The KubeletConfiguration to play under, instead of the recorded.")
@click.option("--pods", type=_FILE, help="Pods that are there from the beginning of the record on.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@answer_options
@click.argument("record", nargs=-1, required=True, type=_DIRECTORY)
def replay(config: Path | None, pods: Path | None, record: tuple[Path, ...], **options: Any) -> None:
    """Play recorded nodes again, and say what would have gone differently and when.

    RECORD is a directory that an agent writes, one for each node. Without options, every decision about
    admission, preemption, eviction, images and restarts is taken again under the recorded configuration, and
    compared with the agent's own. With --config or --pods, the answer says what differs: pods that are
    evicted, preempted, refused or admitted, others that are spared, images that go or stay, evictions and
    removals that come earlier or later, and containers that restart at other times.
    """
    following = load_config([config])[0] if config is not None else None
    more = load_pods(pods)[0] if pods is not None else []
    for pod in more:
        apply_defaults(pod)
    with computing("replay", 1, options) as step:
        nodes = map(read_recorded, record)
        answer = replay_answer(nodes, following, more, lambda: step(1 / len(record)))
    meta = {"sources": [str(directory) for directory in record]}
    given = {"config": str(config or ""), "pods": str(pods or "")}
    deliver(answer, meta, {"question": "replay", "parameters": given}, options)


COMMANDS = {"replay": replay}
