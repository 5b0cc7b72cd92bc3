"""Install a node in a machine: containerd with systemd's cgroups, and the checkout's agent as a service."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.testing.images import PAUSE_TAG, write_busybox, write_image
from tests.system.vm.image import SHARE
from tests.system.vm.machine import Machine

ROOT = Path(__file__).parents[3]
PYTHON = f"{ROOT}/.venv/bin/python"
AGENT = f"{ROOT}/.venv/bin/kubengine"
MANIFESTS = "/etc/kubernetes/manifests"
CONFIG = "/etc/kubernetes/node.yaml"
UNIT = "agent.service"
STATE = "/var/lib/kubelet"
PORT = 10255
LONG = 1800.0
"""Seconds for what takes a minute on an idle host: without KVM on a busy one it takes many."""

PAUSE = "trap 'exit 0' TERM; sleep infinity & wait"
"""What a sandbox runs. systemd waits 90 s for a sandbox that ignores SIGTERM whenever it stops a slice."""

NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]},
        }
    ],
}
FIELDS: dict[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "staticPodPath": MANIFESTS,
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "cgroupDriver": "systemd",
    "readOnlyPort": PORT,
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
}
"""What the agent and a kubelet both read."""

NINE_P = "trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose"


def containerd_config(runtime: str = "runc") -> str:
    """Return the configuration of containerd 1.6 and 2.x with this OCI runtime (a name or a path)."""
    plugin = "io.containerd.grpc.v1.cri"
    return f"""
version = 2
[plugins."{plugin}"]
  sandbox_image = "{PAUSE_TAG}"
  disable_hugetlb_controller = false
  [plugins."{plugin}".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."{plugin}".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."{plugin}".containerd.runtimes.runc.options]
      SystemdCgroup = true
      BinaryName = "{runtime}"
"""


def unit(command: str) -> str:
    """Return a service that runs an agent.

    Its pods outlive it, and it notifies systemd once it has started.
    """
    return f"""[Unit]
After=containerd.service checkout.service
Wants=checkout.service
[Service]
Type=notify
ExecStart={command}
TimeoutStartSec={LONG:.0f}
KillMode=process
Delegate=yes
[Install]
WantedBy=multi-user.target
"""


def checkout_unit() -> str:
    """Return a service that mounts the checkout and this Python at their own paths.

    The machine keeps its changes to the checkout on its own disk.
    """
    layers = "lowerdir=/run/checkout,upperdir=/var/checkout/changed,workdir=/var/checkout/work"
    lines = [
        f"/bin/mkdir -p /run/checkout {ROOT} /var/checkout/changed /var/checkout/work",
        f"/bin/mount -t 9p -o {NINE_P} checkout /run/checkout",
        f"/bin/mount -t overlay -o {layers} overlay {ROOT}",
    ]
    if Path(sys.base_prefix) != Path("/usr"):
        lines += [
            f"/bin/mkdir -p {sys.base_prefix}",
            f"/bin/mount -t 9p -o {NINE_P} python {sys.base_prefix}",
        ]
    starts = "".join(f"ExecStart={line}\n" for line in lines)
    return f"[Service]\nType=oneshot\nRemainAfterExit=yes\n{starts}"


def bring(machine: Machine, folder: Path, *names: str) -> str:
    """Copy these programs, as far as the folder has them, into the machine. Return their directory there."""
    (machine.share / "programs").mkdir(exist_ok=True)
    for name in names:
        if (folder / name).exists():
            shutil.copy(folder / name, machine.share / "programs")
    place = f"/opt/{folder.name}"
    machine.check(f"mkdir -p {place}; mv -f {SHARE}/programs/* {place}", LONG)
    return place


def install(machine: Machine) -> None:
    """Start containerd with busybox and a network; write the agent's unit, which is not started."""
    machine.report("install containerd, a network, images and the agent's unit")
    write_image(machine.share / "pause.tar", [PAUSE_TAG], config={"Entrypoint": ["/bin/sh", "-c", PAUSE]})
    write_busybox(machine.share / "busybox.tar")
    put(machine, "/etc/containerd/config.toml", containerd_config())
    put(machine, "/etc/cni/net.d/10-pods.conflist", json.dumps(NETWORK))
    put(machine, "/etc/systemd/system/checkout.service", checkout_unit())
    put(machine, f"/etc/systemd/system/{UNIT}", unit(f"{AGENT} run --config {CONFIG}"))
    configure(machine)
    machine.check(f"mkdir -p {MANIFESTS}; systemctl daemon-reload", LONG)
    machine.check("systemctl enable --now containerd; systemctl start checkout", LONG)
    import_images(machine)


def use_containerd_2(machine: Machine) -> str:
    """Run containerd from the folder `CONTAINERD2_BIN` as the machine's, on its own configuration.

    Return the directory of its programs.
    """
    programs = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
    folder = bring(machine, Path(os.environ["CONTAINERD2_BIN"]), *programs)
    path = f"[Service]\nEnvironment=PATH={folder}:/usr/sbin:/usr/bin:/sbin:/bin\n"
    put(machine, "/etc/containerd/config.toml", containerd_config())
    command = f"ExecStart=\nExecStart={folder}/containerd\n"
    put(machine, "/etc/systemd/system/containerd.service.d/two.conf", path + command)
    put(machine, f"/etc/systemd/system/{UNIT}.d/two.conf", path)
    machine.check("systemctl daemon-reload; systemctl restart containerd", LONG)
    return folder


def import_images(machine: Machine, ctr: str = "ctr") -> None:
    """Give containerd the two images that pods use."""
    for name in ("pause", "busybox"):
        machine.check(f"{ctr} -n k8s.io images import {SHARE}/{name}.tar", LONG)


def configure(machine: Machine, more: Mapping[str, Any] | None = None) -> bool:
    """Write the configuration of both agents, and tell whether that changed it.

    The fields in `more` replace the usual ones; a field that is None is left out.
    """
    fields = {name: value for name, value in {**FIELDS, **(more or {})}.items() if value is not None}
    text = json.dumps(fields, indent=1)
    changed = machine.run(f"cat {CONFIG}").output != text
    if changed:
        put(machine, CONFIG, text)
    return changed


def put(machine: Machine, path: str, text: str) -> None:
    """Write a file of the machine."""
    (machine.share / "put").write_text(text)
    machine.check(f"mkdir -p $(dirname {path}); cp {SHARE}/put {path}")


def run_agent(machine: Machine, more: Mapping[str, Any] | None = None) -> None:
    """Let the agent run with these fields (see `configure`), restarted only if it must be."""
    if configure(machine, more) or machine.run(f"systemctl -q is-active {UNIT}").code:
        start_agent(machine)


def start_agent(machine: Machine) -> None:
    """Start the agent's service, now and at each boot, or restart it, and wait until it has started."""
    machine.report("start the agent")
    restart = f"systemctl restart {UNIT} || {{ journalctl -n 40 -u {UNIT}; exit 1; }}"
    machine.check(f"systemctl enable {UNIT}; {restart}", LONG)


def stop_agent(machine: Machine) -> None:
    """Stop the agent's service, now and at each boot; its pods go on."""
    machine.check(f"systemctl disable --now {UNIT}", LONG)


def faults(machine: Machine) -> str:
    """Return what `kubengine cgroups check` prints."""
    return machine.run(f"{AGENT} cgroups check --config {CONFIG}", LONG).output.strip()
