"""Implement `kubengine plan replay`: play records of nodes again, also under another configuration."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import click

from engine.api.config import KubeletConfiguration
from engine.api.defaults import apply_defaults
from engine.api.documents import load_config
from engine.api.documents.reader import load_pods
from engine.api.pod import Pod
from engine.cli.plan import answer_options, computing, deliver
from engine.plan.replay.answer import PlayedNode, added_pods, all_of, answer_of, played
from engine.plan.replay.compared import Different
from engine.plan.replay.recorded import NoAgent, read_recorded
from engine.record.reader import moment

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
LEAST_NODES: Final = 4
"""Nodes for which a process of their own is worth its start."""
RARELY: Final = 50_000
"""New objects after which cycles are collected; a node has a few times as many."""
CHUNK: Final = 2
"""Nodes that a process gets at once."""


@click.command(epilog="Example: kubengine plan replay /var/lib/kubengine/record --config next.yaml --explain")
@click.option("--config", type=_FILE, help="The KubeletConfiguration to play under, instead of the recorded.")
@click.option("--pods", type=_FILE, help="Pods that are there from the beginning of the record on.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@answer_options
@click.argument("record", nargs=-1, required=True, type=_DIRECTORY)
def replay(config: Path | None, pods: Path | None, record: tuple[Path, ...], **options: Any) -> None:
    """Play recorded nodes again, and say what would have gone differently and when.

    RECORD is a directory that an agent or a shadow writes, one for each node. Without options, every decision
    about admission, preemption, eviction, images and restarts is taken again under the recorded
    configuration, and compared with the recorded ones: the agent's own, or those of the shadow and of its
    kubelet. With --config or --pods, the answer says what differs: pods that are evicted, preempted, refused
    or admitted, others that are spared, images that go or stay, evictions and removals that come earlier or
    later, and containers that restart at other times.
    """
    following = load_config([config])[0] if config is not None else None
    more = load_pods(pods)[0] if pods is not None else []
    for pod in more:
        apply_defaults(pod)
    with _played(record, following, more) as nodes, computing("replay", 1, options) as step:
        found = []
        for node in nodes:
            found.append(node)
            step(1 / len(record))
        answer = answer_of(found)
    meta = {"sources": [str(directory) for directory in record]}
    given = {"config": str(config or ""), "pods": str(pods or "")}
    deliver(answer, meta, {"question": "replay", "parameters": given}, options)


@contextmanager
def _played(
    directories: Sequence[Path], config: KubeletConfiguration | None, more: Sequence[Pod]
) -> Iterator[Iterator[PlayedNode]]:
    """Play nodes in order; several are played by several processes, at most one for each CPU. They are forked
    here, before a progress bar has its thread.
    """
    play = partial(_play, config=config, more=more)
    processes = min(len(os.sched_getaffinity(0)), len(directories) // LEAST_NODES)
    if processes < 2:
        yield map(play, directories)
        return
    # Collecting cycles as often as by default would take a tenth of the time.
    with ProcessPoolExecutor(processes, get_context("fork"), gc.set_threshold, (RARELY,)) as pool:
        yield pool.map(play, directories, chunksize=CHUNK)


def _play(directory: Path, config: KubeletConfiguration | None, more: Sequence[Pod]) -> PlayedNode:
    """Play the record of an agent or of a shadow."""
    try:
        return played(read_recorded(directory), config, more)
    except NoAgent:
        found = _of_shadow(directory, config, more)
        if found is None:
            raise
        return found


def _of_shadow(
    directory: Path, config: KubeletConfiguration | None, more: Sequence[Pod]
) -> PlayedNode | None:
    """Play the record of a shadow; None if it is none."""
    # Imported here, because planners need nothing of a shadow.
    from engine.shadow.replay import is_of_shadow, replay_shadow

    if not is_of_shadow(directory):
        return None
    found = replay_shadow(directory, config, added_pods(more))
    changes = [
        Different(
            "victim" if one.decision == "preempt" else one.decision,
            one.subject,
            f"{moment(one.at)}: {one.next} instead of {one.now}: {one.why}",
            round(one.at - found.began),
        )
        for one in found.changes
    ]
    said, mismatches = all_of(found.began, found.ended), [*found.mismatches, *found.differ]
    return PlayedNode(found.name, said, found.decisions, found.gaps, mismatches, changes)


COMMANDS = {"replay": replay}
