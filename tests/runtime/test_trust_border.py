"""What a container can see of the processes that start it, and which of its messages they believe."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import Refused
from engine.runtime.images.store import ImageStore
from engine.runtime.shim import messages
from engine.runtime.spawning import Conversation
from engine.testing.images import GROUP, PASSWD, ImageEntry, busybox_layer, make_layer, write_image
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.pods import Pods
from tests.waiting import eventually

OURS = "for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in kubengine-shim) "


class HeldStarts:
    """Stop each start of a container just before its program is executed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[Conversation] = []
        self._go = Conversation.go
        waiting = self.waiting

        def hold(talk: Conversation) -> None:
            waiting.append(talk)

        monkeypatch.setattr(Conversation, "go", hold)

    async def start(self, pods: Pods, container: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(pods.client.start_container(container))

        async def held() -> bool:
            return bool(self.waiting)

        await eventually(held)
        return task

    async def finish(self, task: asyncio.Task[None]) -> None:
        self._go(self.waiting.pop())
        await task


def _security(*capabilities: str) -> cri.LinuxContainerConfig:
    return cri.LinuxContainerConfig(
        security_context=cri.LinuxContainerSecurityContext(
            capabilities=cri.Capability(add_capabilities=capabilities),
            namespace_options=cri.NamespaceOption(pid=cri.POD),
        )
    )


@pytest.mark.root
async def test_neighbours_cannot_look_into_a_process_that_is_about_to_start(
    embedded: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await embedded.pod()
    looker = await embedded.start(sandbox, "sleep", "1000", pid=cri.POD)
    started = await embedded.create(sandbox, "sleep", "1000", pid=cri.POD)
    held = HeldStarts(monkeypatch)
    task = await held.start(embedded, started)
    script = (
        OURS
        + "echo found; for l in $p/exe $p/fd/*; do readlink $l; done; cat $p/environ; head -c1 $p/mem;;"
        + " esac; done 2>&1"
    )
    seen = (await embedded.client.exec_sync(looker, ["/bin/sh", "-c", script], 10)).stdout.decode()
    await held.finish(task)
    lines = seen.splitlines()
    assert lines[0] == "found"
    assert len([line for line in lines[1:] if "ermission denied" in line]) == len(lines) - 1 >= 2, seen


@pytest.mark.root
async def test_even_who_may_trace_finds_no_pipe_of_ours_and_cannot_write_our_program(
    embedded: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await embedded.pod()
    script = (
        "while ! test -e /held; do sleep 0.05; done; " + OURS + "it=$p;; esac; done; "
        "ls -l $it/fd | sed 's/.* \\([0-9]*\\) -> /\\1 /'; exec 3<$it/exe; echo taken > /taken; "
        "while test $(cat $it/comm) = kubengine-shim; do sleep 0.05; done; "
        "echo; (printf x >/proc/self/fd/3) 2>&1; touch /done; sleep 1000"
    )
    tracer = await embedded.shell(script, sandbox, pid=cri.POD, linux=_security("SYS_PTRACE"))
    started = await embedded.create(sandbox, "sleep", "1000", pid=cri.POD)
    held = HeldStarts(monkeypatch)
    task = await held.start(embedded, started)

    async def inside(*command: str) -> bool:
        return (await embedded.client.exec_sync(tracer, list(command), 10)).exit_code == 0

    await inside("touch", "/held")
    await eventually(lambda: inside("test", "-e", "/taken"))
    await held.finish(task)
    await eventually(lambda: inside("test", "-e", "/done"))
    text = "\n".join(line for _, _, line in embedded.log(await embedded.status(tracer)))
    descriptors, _, writing = text.partition("\n\n")
    assert "Read-only file system" in writing
    open_pipes = [line for line in descriptors.splitlines() if "pipe:" in line]
    assert {line.split()[0] for line in open_pipes} <= {"0", "1", "2"} | _standard_copies(descriptors), text
    assert ".sock" not in descriptors


def _standard_copies(descriptors: str) -> set[str]:
    """Return the descriptors whose targets are also those of descriptors 0, 1 or 2."""
    pairs = [line.split() for line in descriptors.splitlines() if " " in line]
    standard = {words[1] for words in pairs if words[0] in ("0", "1", "2")}
    return {words[0] for words in pairs if words[1] in standard}


@pytest.mark.root
async def test_the_process_that_holds_the_pod_has_no_privileges(embedded: Pods) -> None:
    sandbox = await embedded.pod()
    info = (await embedded.client.pod_sandbox_status(sandbox, verbose=True)).info
    status = Path("/proc", str(json.loads(info["info"])["pid"]), "status")

    async def dropped() -> bool:
        fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        return {fields[name] for name in ("CapPrm", "CapEff", "CapAmb")} == {"0" * 16}

    await eventually(dropped)


def _image(pods: Pods, path: str, kind: bytes, data: bytes = b"", link: str = "") -> str:
    """Import busybox with another file of type `kind` at `path`, and return the image's name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo(path)
        info.type, info.linkname, info.size, info.mode = kind, link, len(data), 0o644
        tar.addfile(info, io.BytesIO(data))
    archive = write_image(pods.directory / "odd.tar", ["odd:1"], layers=[busybox_layer(), out.getvalue()])
    ImageStore(pods.directory / "root").import_archive(archive)
    return "odd:1"


@pytest.mark.root
@pytest.mark.parametrize(
    ("path", "kind", "data", "link", "message"),
    [
        ("etc/passwd", tarfile.FIFOTYPE, b"", "", "/etc/passwd: not a regular file"),
        ("etc/group", tarfile.FIFOTYPE, b"", "", "/etc/group: not a regular file"),
        ("etc/passwd", tarfile.DIRTYPE, b"", "", "/etc/passwd: not a regular file"),
        ("etc/passwd", tarfile.SYMTYPE, b"", "/dev/zero", "/etc/passwd: not a regular file"),
        ("etc/group", tarfile.SYMTYPE, b"", "group", "/etc/group: Too many levels of symbolic links"),
        ("etc/group", tarfile.REGTYPE, b"x" * (5 << 20), "", "/etc/group: more than 4194304 bytes"),
    ],
    ids=["fifo", "group-fifo", "directory", "device", "circle", "huge"],
)
async def test_odd_user_files_are_named(
    embedded: Pods, path: str, kind: bytes, data: bytes, link: str, message: str
) -> None:
    image = _image(embedded, path, kind, data, link)
    container = await embedded.create(await embedded.pod(), "true", image=image)
    with pytest.raises(Refused, match=message):
        await embedded.client.start_container(container)
    status = await embedded.status(container)
    assert (status.reason, status.exit_code) == ("StartError", 128)


@pytest.mark.root
async def test_odd_lines_of_user_files_are_ignored(embedded: Pods) -> None:
    odd = (
        "root:x:²:0::/:\nroot:x:{}:0::/:\nroot:x:0:-1::/:\nshort\n\n".format("9" * 5000).encode() + b"\xff:\n"
    )
    layers = [
        busybox_layer(),
        make_layer(
            [
                ImageEntry("etc/passwd", data=odd + PASSWD, mode=0o644),
                ImageEntry("etc/group", data=b"x:x:4294967295:app\n" + GROUP, mode=0o644),
            ]
        ),
    ]
    archive = write_image(embedded.directory / "odd.tar", ["odd:1"], layers=layers, config={"User": "app"})
    ImageStore(embedded.directory / "root").import_archive(archive)
    assert await embedded.output("id -u; id -G", image="odd:1") == "1000\n1000 50000"


def _receive(data: bytes) -> dict[str, Any]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        ours.settimeout(5)
        return messages.receive_from_child(ours)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"\xff" * 64,
        messages.HEAD.pack(1 << 30, 0),
        messages.HEAD.pack(messages.CHILD_MOST + 1, 0),
        messages.pack({"user": ["0", 0, []]}),
        messages.pack({"user": [0, 0]}),
        messages.pack({"user": [0, 0, ["a"]]}),
        messages.pack({"user": {"uid": 0}}),
        messages.pack({"error": 5}),
        messages.pack({}),
        messages.HEAD.pack(2, 0) + b"[]",
        messages.HEAD.pack(6, 0) + b"\xff\xfe\x00\x00\x00\x00",
        messages.HEAD.pack(100_000, 0) + b"[" * 100_000,
    ],
)
def test_the_output_of_a_child_is_checked(data: bytes) -> None:
    answer = _receive(data)
    assert answer.keys() <= {"error"}


def test_which_messages_of_a_child_are_accepted() -> None:
    assert _receive(b"") == {}
    assert _receive(messages.pack({"user": [1, 2, [3]], "more": 1})) == {"user": [1, 2, [3]]}
    assert _receive(messages.pack({"error": "no such file", "user": [0, 0, []]})) == {"error": "no such file"}


async def test_answers_of_helpers_are_bounded_objects() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(messages.pack({"exit_code": 1, "stdout_size": 2}, b"ab\xff"))
    talk = Conversation(reader, None)  # type: ignore[arg-type]
    assert await talk.receive() == {"exit_code": 1, "stdout_size": 2, "content": b"ab\xff"}
    for wrong in (messages.HEAD.pack(messages.MOST, 1), messages.HEAD.pack(1, 0) + b"1"):
        reader.feed_data(wrong)
        with pytest.raises(Exception, match="a message"):
            await talk.receive()
