"""Machines by hand: `python -m tests.system.vm start NAME`, then `run NAME COMMAND`, `off`, `remove`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TextIO

from engine.api.errors import KubengineError
from tests.system.vm import image
from tests.system.vm.machine import Machine, Size, interpreter

ROOT = Path(__file__).parents[3]
PLACE = ROOT / "build/vm"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.vm", description=__doc__)
    parser.add_argument("--directory", type=Path, default=PLACE, help="image and machines (build/vm)")
    doing = parser.add_subparsers(dest="doing", required=True)
    doing.add_parser("image", help="make the image, if it is not there")
    start = doing.add_parser("start", help="start a machine, on the disk that it left, and wait for it")
    start.add_argument("name")
    start.add_argument("--cpus", type=int, default=2)
    start.add_argument("--nodes", type=int, default=1, help="NUMA nodes")
    start.add_argument("--memory", type=int, default=4096, help="MiB")
    start.add_argument(
        "--mount", action="append", default=[], metavar="TAG=DIR", help="mount -t 9p -o trans=virtio TAG ..."
    )
    run = doing.add_parser("run", help="run a shell command as root; its exit code is ours")
    run.add_argument("name")
    run.add_argument("command")
    run.add_argument("--seconds", type=float, default=600.0)
    for name, text in (("off", "switch it off, keep its disk"), ("remove", "stop it and delete its disk")):
        doing.add_parser(name, help=text).add_argument("name")
    asked = parser.parse_args()
    try:
        return _do(asked)
    except KubengineError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1


def _do(asked: argparse.Namespace) -> int:
    made = image.locate(asked.directory)
    if asked.doing in ("image", "start"):
        image.make(asked.directory, _report)
    if asked.doing == "image":
        return 0
    place = asked.directory / "machines" / asked.name
    if asked.doing == "start":
        mounts = {"checkout": ROOT} | ({"python": python} if (python := interpreter()) else {})
        mounts |= {tag: Path(path) for tag, _, path in (text.partition("=") for text in asked.mount)}
        Machine(made, place, Size(asked.cpus, asked.nodes, asked.memory), mounts, _report).start()
        return 0
    machine = Machine(made, place)
    if asked.doing == "run":
        return machine.run(asked.command, asked.seconds, show=_write).code
    if asked.doing == "off":
        machine.power_off()
    else:
        machine.remove()
    return 0


def _report(text: str) -> None:
    _write(f"{text}\n", sys.stderr)


def _write(text: str, stream: TextIO = sys.stdout) -> None:
    stream.write(text)
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
