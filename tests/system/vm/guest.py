"""Runs inside the machine: executes the commands that the host sends over a virtio port.

A request is a line of JSON, `{"id": 1, "command": "..."}`. Its answers are lines, too: any number of
`{"id": 1, "output": "..."}` and one `{"id": 1, "code": 0}`. Commands run one after another, by bash, as root.
It needs only Python's standard library.
"""

from __future__ import annotations

import codecs
import json
import os
import subprocess
import sys
import time
from typing import Any


def serve(port: str) -> None:
    with open(port, "r+b", buffering=0) as channel:  # noqa: PTH123
        pending = b""
        while True:
            data = channel.read(65536)
            if not data:  # no host is connected
                time.sleep(0.05)
                continue
            pending += data
            *lines, pending = pending.split(b"\n")
            for line in lines:
                try:
                    request = json.loads(line)
                except ValueError:  # cut off when the host's process ended
                    continue
                execute(request, channel)


def execute(request: dict[str, Any], channel: Any) -> None:
    """Run one command; its standard output and error go back as they come."""
    process = subprocess.Popen(
        ["/bin/bash", "-c", request["command"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/root",
    )
    assert process.stdout is not None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := os.read(process.stdout.fileno(), 65536):
        answer(channel, id=request["id"], output=decoder.decode(data))
    answer(channel, id=request["id"], code=process.wait())


def answer(channel: Any, **fields: Any) -> None:
    line = json.dumps(fields).encode() + b"\n"
    while line:
        line = line[channel.write(line) :]


if __name__ == "__main__":
    serve(sys.argv[1])
