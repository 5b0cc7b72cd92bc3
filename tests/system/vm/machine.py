"""Start a machine under QEMU, run commands in it, reboot it, and switch it off."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from engine.api.errors import Unavailable
from tests.system.vm.image import Image

BOOT_SECONDS = 1800.0
LONGEST_PAUSE = 10.0
"""Seconds between two questions. A machine that boots answers none, and is not slowed down by them either."""
KVM = "/dev/kvm"
KERNEL_OPTIONS = "root=/dev/vda rw console=ttyS0 quiet mitigations=off psi=1 no_timer_check"


@dataclass(frozen=True, slots=True)
class Size:
    """Hold the number of processors, of NUMA nodes that share them evenly, and the memory in MiB."""

    cpus: int = 2
    nodes: int = 1
    memory: int = 4096


@dataclass(frozen=True, slots=True)
class Cable:
    """Connect the second network interface of two machines: a socket for each end.

    The interface of the first end has the MAC address `MAC.format(1)`, the other `MAC.format(2)`.
    """

    directory: Path
    end: int

    MAC: ClassVar[str] = "52:54:00:00:00:0{0}"

    def options(self) -> list[str]:
        """Return QEMU's options."""
        own, other = self.directory / f"cable{self.end}", self.directory / f"cable{3 - self.end}"
        own.unlink(missing_ok=True)  # QEMU does not replace it
        ends = f"local.type=unix,local.path={own},remote.type=unix,remote.path={other}"
        device = f"virtio-net-pci,netdev=cable,mac={self.MAC.format(self.end)}"
        return ["-netdev", f"dgram,id=cable,{ends}", "-device", device]


@dataclass(frozen=True, slots=True)
class Done:
    """Hold a command's exit code, and all that it printed."""

    code: int
    output: str


class Machine:
    """Run a machine under QEMU that keeps everything in `directory`.

    These are: a disk with the differences from the image's, the console's text, QEMU's pid, and `share`,
    which the machine sees as /run/host. `mounts` are further directories of this host by 9p tag; the machine
    can mount them read only. `report` gets a line for each step. A `cable` leads to another machine; `disk`
    is a second disk, /dev/vdb.
    """

    def __init__(
        self,
        image: Image,
        directory: Path,
        size: Size | None = None,
        mounts: dict[str, Path] | None = None,
        report: Callable[[str], None] = lambda text: None,
        *,
        cable: Cable | None = None,
        disk: Path | None = None,
    ) -> None:
        self.directory = directory
        self.share = directory / "share"
        self._image = image
        self._size = size or Size()
        self._mounts = mounts or {}
        self._cable = cable
        self._second_disk = disk
        self.report = report
        self._requests = time.time_ns()

    # Life

    def start(self) -> None:
        """Start it, on its existing disk if it has one. Raises `Unavailable` with QEMU's message."""
        size = self._size
        self.report(f"start a machine: {size.cpus} CPUs, {size.nodes} NUMA nodes, {size.memory} MiB")
        self.share.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("guest.py"), self.share)
        disk = self.directory / "disk.qcow2"
        if not disk.exists():
            base = ["-f", "qcow2", "-F", "raw", "-b", str(self._image.disk)]
            subprocess.run(["qemu-img", "create", "-q", *base, str(disk)], check=True)
        done = subprocess.run(self._command(disk), capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"QEMU did not start: {done.stderr.strip()}", subject=str(self.directory))
        self.wait_until_up()

    def _command(self, disk: Path) -> list[str]:
        size = self._size
        memory = size.memory // size.nodes
        cpus = size.cpus // size.nodes
        command = ["qemu-system-x86_64", *_accelerator()]
        command += ["-smp", f"{size.cpus},sockets={size.nodes},cores={cpus},threads=1"]
        command += ["-m", f"{memory * size.nodes}M"]
        for node in range(size.nodes):
            command += ["-object", f"memory-backend-ram,id=m{node},size={memory}M"]
            owned = f"{node * cpus}-{(node + 1) * cpus - 1}"
            command += ["-numa", f"node,nodeid={node},cpus={owned},memdev=m{node}"]
        command += ["-kernel", str(self._image.kernel), "-initrd", str(self._image.initrd)]
        command += ["-append", KERNEL_OPTIONS]
        command += ["-drive", f"file={disk},if=virtio,cache=unsafe,discard=unmap"]
        if self._second_disk is not None:
            command += ["-drive", f"file={self._second_disk},format=raw,if=virtio,cache=unsafe"]
        command += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"]
        command += self._cable.options() if self._cable else []
        for tag, path in {"share": self.share, **self._mounts}.items():
            read_only = "" if tag == "share" else ",readonly=on"
            shared = f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{read_only}"
            command += ["-virtfs", shared]
        command += ["-device", "virtio-serial-pci"]
        command += ["-chardev", f"socket,id=commands,path={self.directory}/commands,server=on,wait=off"]
        command += ["-device", "virtserialport,chardev=commands,name=commands"]
        command += ["-serial", f"file:{self.directory}/console", "-display", "none", "-monitor", "none"]
        return [*command, "-daemonize", "-pidfile", str(self._pid)]

    @property
    def _pid(self) -> Path:
        return self.directory / "pid"

    @property
    def running(self) -> bool:
        """Tell whether its QEMU lives: a process that ended, reaped or not, has no command line."""
        try:
            command = Path(f"/proc/{int(self._pid.read_text())}/cmdline").read_text()
        except (OSError, ValueError):
            return False
        return str(self._pid) in command

    def wait_until_up(self, boot: str = "") -> None:
        """Wait for a shell and the end of systemd's start; with `boot`, for another boot than that one."""

        def up() -> bool:
            if not self.running:
                raise Unavailable(f"QEMU ended: {self._last('console')}", subject=str(self.directory))
            try:
                return self.run(_BOOT_ID, 20).output.strip() != boot
            except Unavailable:
                return False

        self.until(up, BOOT_SECONDS, "a shell")
        self.report("wait for the end of systemd's start")
        self.run("systemctl is-system-running --wait", BOOT_SECONDS)

    def reboot(self) -> None:
        """Restart its system as an administrator does, and wait for the new one."""
        self.report("reboot")
        boot = self.check(_BOOT_ID).strip()
        self.run("systemctl reboot --no-block")
        self.wait_until_up(boot)

    def power_off(self, seconds: float = BOOT_SECONDS) -> None:
        """Switch it off as an administrator does, and wait for its end."""
        self.report("switch it off")
        self.run("systemctl poweroff --no-block")
        self.until(lambda: not self.running, seconds, "the machine to switch itself off")

    def stop(self) -> None:
        """Cut its power, if it is running."""
        if self.running:
            os.kill(int(self._pid.read_text()), signal.SIGKILL)
            self.until(lambda: not self.running, 60, "QEMU to end")

    def remove(self) -> None:
        """Cut its power, and remove its directory."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    # Commands

    def run(self, command: str, seconds: float = 300.0, *, show: Callable[[str], None] | None = None) -> Done:
        """Run a shell command as root; `show` gets its output as it comes.

        Raises `Unavailable` if the command has not ended after so many seconds; it then goes on.
        """
        self._requests += 1
        number, shown, pending = self._requests, "", b""
        deadline = time.monotonic() + seconds
        with socket.socket(socket.AF_UNIX) as channel:
            try:
                channel.connect(str(self.directory / "commands"))
                channel.sendall(json.dumps({"id": number, "command": command}).encode() + b"\n")
                while True:
                    channel.settimeout(max(0.01, deadline - time.monotonic()))
                    data = channel.recv(65536)
                    if not data:
                        raise Unavailable(f"the machine is off: {shown[-2000:]}", subject=command)
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        try:
                            answer = json.loads(line)
                        except ValueError:  # the rest of an answer to somebody who left
                            continue
                        if answer["id"] != number:
                            continue
                        if "code" in answer:
                            return Done(answer["code"], shown)
                        shown += answer["output"]
                        if show is not None:
                            show(answer["output"])
            except TimeoutError:
                message = f"has not ended after {seconds:g} s: {shown[-2000:]}"
                raise Unavailable(message, subject=command) from None
            except OSError as error:
                raise Unavailable(f"the machine does not listen: {error}", subject=command) from error

    def check(self, command: str, seconds: float = 300.0) -> str:
        """Run a command and return its output. Raises `Unavailable` if it fails."""
        done = self.run(command, seconds)
        if done.code:
            raise Unavailable(f"exit code {done.code}: {done.output[-4000:]}", subject=command)
        return done.output

    def until(self, holds: Callable[[], bool], seconds: float, awaited: str) -> None:
        """Wait until something holds. Raises `Unavailable` with the console's last lines.

        Where a machine is emulated, asking takes its time: three quarters are left to what it does, up to
        `LONGEST_PAUSE` at a time.
        """
        self.report(f"wait for {awaited}")
        deadline = time.monotonic() + seconds
        while True:
            asked = time.monotonic()
            if holds():
                return
            if time.monotonic() > deadline:
                text = f"waited {seconds:g} s for {awaited}; the console's end: {self._last('console')}"
                raise Unavailable(text, subject=str(self.directory))
            time.sleep(min(LONGEST_PAUSE, max(0.3, 3 * (time.monotonic() - asked))))

    def _last(self, name: str) -> str:
        try:
            return (self.directory / name).read_text(errors="replace")[-1500:]
        except OSError:
            return ""


_BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def _accelerator() -> list[str]:
    """Return QEMU's options: KVM if it starts a stock kernel, else emulation.

    In a hypervisor's guest without nesting, /dev/kvm (PVM's) runs only kernels that were made for it.
    Emulation walks page tables of four levels in less time than those of five.
    """
    flags = Path("/proc/cpuinfo").read_text()
    if os.access(KVM, os.R_OK | os.W_OK) and (" vmx" in flags or " svm" in flags):
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,-la57"]


def interpreter() -> Path | None:
    """Return the directory of this Python's own files; None if a Debian package installed them."""
    prefix = Path(sys.base_prefix)
    return None if prefix == Path("/usr") else prefix
