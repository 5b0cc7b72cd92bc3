"""A containerd of one's own: private root, state, socket, network and bridge, gone without a trace.

    with Containerd(tmp_path) as containerd:
        containerd.import_image(write_busybox(tmp_path / "busybox.tar"))
        client = RuntimeClient(containerd.socket)

Needs root, containerd (1.6 or later), runc or crun, and the CNI plugins (Debian: containerd, runc,
containernetworking-plugins).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import grpc

from engine.host.mountinfo import mounted
from engine.testing.images import PAUSE_TAG, write_pause
from engine.wire import cri_v1_pb2 as cri
from engine.wire import cri_v1_pb2_grpc as cri_grpc

CONFIG = """\
version = 2
root = "{root}"
state = "{state}"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.internal.v1.tracing", "io.containerd.nri.v1.nri",
]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox_image}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{state}/runc"
        BinaryName = "{oci_runtime}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
"""

CONFLIST = """\
{{"cniVersion": "0.4.0", "name": "{name}", "plugins": [
  {{"type": "bridge", "bridge": "{bridge}", "isGateway": true, "ipMasq": false, "hairpinMode": true,
    "ipam": {{"type": "host-local", "dataDir": "{data}", "ranges": [[{{"subnet": "{subnet}"}}]],
              "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}, "snat": false}}
]}}
"""


class Containerd:
    """Run a containerd below `directory`; `socket` is its CRI endpoint's path.

    `image_filesystem_mb` puts its root (images, snapshots) on a separate ext4 of that size, mounted from a
    file, so that filling it does no harm. `socket` has a short name at `/run/…`, because a unix socket's
    path is limited to 107 bytes and temporary directories are deep. `binaries` is a directory with
    containerd, ctr and the shim, None for those on the PATH; `oci_runtime` is runc or crun.
    """

    def __init__(
        self,
        directory: Path,
        *,
        image_filesystem_mb: int | None = None,
        snapshotter: str = "overlayfs",
        binaries: Path | None = None,
        oci_runtime: str = "runc",
    ) -> None:
        self.name = "kbg" + secrets.token_hex(3)
        self.directory = Path(directory) / self.name
        self.root = self.directory / "root"
        self.state = Path("/run") / self.name
        self.socket = self.state / "containerd.sock"
        self.bridge = self.name + "br"
        self.subnet = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(256)}.0/24"
        self.log = self.directory / "containerd.log"
        self.image_filesystem_mb = image_filesystem_mb
        self.snapshotter = snapshotter
        self.oci_runtime = oci_runtime
        self._environment = dict(os.environ)
        if binaries is not None:
            self._environment["PATH"] = f"{binaries}:{self._environment.get('PATH', os.defpath)}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Containerd:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start it (or restart it after `kill`) and wait until its CRI service answers, at most 30 s."""
        first = not self.root.exists()
        for path in (self.directory, self.root, self.state, self.directory / "cni"):
            path.mkdir(mode=0o711, parents=True, exist_ok=True)  # user namespaces also pass
        if first:
            if self.image_filesystem_mb is not None:
                self._mount_filesystem(self.image_filesystem_mb)
            self._write_config()
        with self.log.open("ab") as log:
            self._process = self._spawn(log)
        self._wait_until_ready()
        if first:
            self.import_image(write_pause(self.directory / "pause.tar"))

    def kill(self) -> None:
        """Send SIGKILL to the daemon; containers keep running, and `start` restarts it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ctr(self, *arguments: str) -> str:
        """Return the output of `ctr -n k8s.io ARGUMENTS`."""
        done = subprocess.run(
            [self._program("ctr"), "-a", str(self.socket), "-n", "k8s.io", *arguments],
            capture_output=True, text=True, check=False, timeout=120, env=self._environment,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def import_image(self, archive: Path) -> None:
        self.ctr("images", "import", "--snapshotter", self.snapshotter, str(archive))

    def remove_pods(self) -> None:
        """Stop and remove every pod through the CRI, without a grace period."""
        with grpc.insecure_channel(f"unix://{self.socket}") as channel:
            stub = _runtime(channel)
            for pod in stub.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=10).items:
                for container in stub.ListContainers(
                    cri.ListContainersRequest(filter=cri.ContainerFilter(pod_sandbox_id=pod.id)), timeout=10
                ).containers:
                    with contextlib.suppress(grpc.RpcError):
                        stub.StopContainer(
                            cri.StopContainerRequest(container_id=container.id, timeout=0), timeout=30
                        )
                with contextlib.suppress(grpc.RpcError):
                    stub.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod.id), timeout=30)
                    stub.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id), timeout=30)

    def close(self) -> None:
        """Remove pods, daemon, shims, mounts, namespaces, bridge and files."""
        if self._process is not None:
            with contextlib.suppress(grpc.RpcError):
                self.remove_pods()
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._kill_shims()
        for address in self.state.glob("io.containerd.runtime.v2.task/*/*/address"):
            with contextlib.suppress(OSError):
                Path(address.read_text().strip().removeprefix("unix://")).unlink(missing_ok=True)
        for mountpoint in mounts_below(self.state, self.directory):
            subprocess.run(["umount", "-l", mountpoint], check=False, capture_output=True)
        if Path("/sys/class/net", self.bridge).exists():
            subprocess.run(["ip", "link", "delete", self.bridge], check=False, capture_output=True)
        for cached in Path("/var/lib/cni/results").glob(f"{self.name}-*"):
            cached.unlink(missing_ok=True)
        for group in Path("/sys/fs/cgroup").glob("*/k8s.io"):  # parent of pods without a cgroup_parent
            with contextlib.suppress(OSError):
                group.rmdir()
        shutil.rmtree(self.state, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._program("containerd"), "-c", str(self.directory / "config.toml")],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment,
        )  # fmt: skip

    def _program(self, name: str) -> str:
        """Return a program's path: `Popen` searches this process's PATH, not the child's."""
        return shutil.which(name, path=self._environment.get("PATH")) or name

    def _write_config(self) -> None:
        cni = self.directory / "cni"
        (self.directory / "config.toml").write_text(
            CONFIG.format(
                root=self.root, state=self.state, socket=self.socket, cni=cni,
                sandbox_image=PAUSE_TAG, snapshotter=self.snapshotter, oci_runtime=self.oci_runtime,
            )
        )  # fmt: skip
        (cni / "10-bridge.conflist").write_text(
            CONFLIST.format(
                name=self.name, bridge=self.bridge, subnet=self.subnet, data=self.directory / "ipam"
            )
        )

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 30
        # A channel that found no socket backs off for a second, so wait for the socket first.
        while not self.socket.exists() and time.monotonic() < deadline and self._process.poll() is None:
            time.sleep(0.05)
        while self._process.poll() is None and time.monotonic() < deadline:
            with (
                grpc.insecure_channel(f"unix://{self.socket}") as channel,
                contextlib.suppress(grpc.RpcError),
            ):
                status = _runtime(channel).Status(cri.StatusRequest(), timeout=2).status
                # Version 2 adds a condition that deprecation warnings set to false.
                ready = [c.status for c in status.conditions if c.type in ("RuntimeReady", "NetworkReady")]
                if len(ready) == 2 and all(ready):
                    return
            time.sleep(0.1)
        raise RuntimeError(f"containerd did not become ready:\n{self.log.read_text()[-4000:]}")

    def _mount_filesystem(self, megabytes: int) -> None:
        backing = self.directory / "images.ext4"
        with backing.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(backing)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(backing), str(self.root)], check=True)

    def _kill_shims(self) -> None:
        marker = str(self.socket).encode()
        shims, parents = [], {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"containerd-shim" in words[0] and marker in words:
                    shims.append(int(entry.name))
        # Containers are children of their shims, and would outlive them.
        doomed = set(shims)
        grown = True
        while grown:
            grown = False
            for pid, parent in parents.items():
                if parent in doomed and pid not in doomed:
                    doomed.add(pid)
                    grown = True
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in doomed:
            for _ in range(100):
                if not Path("/proc", str(pid)).exists():
                    break
                time.sleep(0.02)


def containerd_version(binaries: Path | None = None) -> tuple[int, int]:
    """Return major and minor version of the containerd in `binaries`, None for the one on the PATH; (0, 0)
    without one.
    """
    try:
        shown = subprocess.run(
            [str(binaries / "containerd") if binaries is not None else "containerd", "--version"],
            capture_output=True, text=True, check=True, timeout=30,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return 0, 0
    numbers = re.search(r"\bv?([0-9]+)\.([0-9]+)", shown)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _runtime(channel: grpc.Channel) -> Any:
    return cri_grpc.RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]


def mounts_below(*directories: Path) -> list[str]:
    """Return mount points of this mount namespace below `directories`, deepest first."""
    prefixes = tuple(f"{directory}/" for directory in directories)
    return [mount.point for mount in reversed(mounted()) if mount.point.startswith(prefixes)]
