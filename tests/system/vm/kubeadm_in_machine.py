"""Prepare a machine for kubeadm as its guide describes: the unit, the images, and kubeadm itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.testing.containerd import Containerd
from engine.testing.images import PAUSE_TAG, ImageEntry, make_layer, write_image
from tests.system.vm.machine import Cable, Machine
from tests.system.vm.node_in_machine import LONG, PAUSE, bring, put, use_containerd_2

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
PROGRAMS = ("kubeadm", "kubectl", "kube-proxy", *CONTROL_PLANE)
UNIT = "kubelet.service"
SERVICE = """[Unit]
Wants=network-online.target
After=network-online.target
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10
[Install]
WantedBy=multi-user.target
"""
DROP_IN = """[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS \
$KUBELET_EXTRA_ARGS
"""
"""The unit and the drop-in of Kubernetes' packages, without their comments."""

CONFIG = "/root/kubeadm.yaml"
ADDRESS = "192.168.98.{0}"
"""Not in 10.96.0.0/12, where kube-proxy drops packets to each address that no service has."""
DISK = "4G"
MOUNT = """[Unit]
Before=containerd.service
[Mount]
What=/dev/vdb
Where=/var/lib/containerd
[Install]
RequiredBy=containerd.service
"""
SYSCTL = "net.ipv4.ip_forward = 1\n"


def lacking() -> str:
    """Return what is missing for a cluster in words; empty if nothing is."""
    folder = Path(os.environ.get("KUBE_BIN", "/nowhere"))
    if absent := [name for name in PROGRAMS if not (folder / name).exists()]:
        return f"KUBE_BIN: a folder with v1.36 of {', '.join(absent)}"
    return "" if shutil.which("nft") else "nft (Debian: nftables)"


def configuration() -> str:
    """Return a configuration for `kubeadm init` with limits of time that suit an emulated machine.

    An election is lost if its lease is renewed late, and RSA keys take minutes there: the control plane has
    one instance of each component, which need not elect, and keys of elliptic curves.
    """
    waits = (
        *("controlPlaneComponentHealthCheck", "kubeletHealthCheck", "kubernetesAPICall", "etcdAPICall"),
        *("tlsBootstrap", "discovery", "upgradeManifests"),
    )
    version = _output(str(Path(os.environ["KUBE_BIN"]) / "kubeadm"), "version", "-o", "short").strip()
    alone = {"extraArgs": [{"name": "leader-elect", "value": "false"}]}
    documents: list[dict[str, Any]] = [
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "InitConfiguration",
            "localAPIEndpoint": {"advertiseAddress": ADDRESS.format(1)},
            "nodeRegistration": {"criSocket": "unix:///run/containerd/containerd.sock"},
            "timeouts": dict.fromkeys(waits, "30m0s"),
        },
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "kubernetesVersion": version,
            "encryptionAlgorithm": "ECDSA-P256",
            "networking": {"podSubnet": "10.244.0.0/16"},
            "controllerManager": alone,
            "scheduler": alone,
            "dns": {"disabled": True},
        },
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
        },
    ]
    return "---\n".join(json.dumps(document, indent=1) + "\n" for document in documents)


def connect(machine: Machine, end: int) -> None:
    """Give the node a name, n1 or n2, and its interface to the other machine the address of that name."""
    put(machine, "/etc/systemd/network/05-cable.network", network(end))
    names = "".join(f"{ADDRESS.format(each)} n{each}\n" for each in (1, 2))
    put(machine, "/etc/hosts", f"127.0.0.1 localhost\n{names}")
    put(machine, "/etc/default/kubelet", f"KUBELET_EXTRA_ARGS=--node-ip={ADDRESS.format(end)}\n")
    machine.check(f"hostnamectl set-hostname n{end}; networkctl reload")
    addressed = f"ip -4 -o addr | grep -q ' {ADDRESS.format(end)}/'"
    machine.until(lambda: machine.run(addressed).code == 0, LONG, "an address")


def network(end: int) -> str:
    """Return systemd's settings of the interface at one end of the cable."""
    return f"[Match]\nMACAddress={Cable.MAC.format(end)}\n[Network]\nAddress={ADDRESS.format(end)}/24\n"


def write_disk(path: Path) -> None:
    """Write a disk with containerd's directory, in which the images of `kubeadm init` are unpacked.

    An emulated machine needs minutes to import each of them.
    """
    binaries = Path(os.environ["CONTAINERD2_BIN"])
    with (
        tempfile.TemporaryDirectory(dir=path.parent) as name,
        Containerd(Path(name), binaries=binaries) as containerd,
    ):
        for archive in write_images(Path(name)):
            containerd.import_image(archive)
        containerd.kill()
        command = ["mke2fs", "-q", "-F", "-t", "ext4", "-d", str(containerd.root), str(path), DISK]
        subprocess.run(command, check=True)


def write_images(directory: Path) -> Iterator[Path]:
    """Write the images that kubeadm's configuration names, each with the program of its name.

    kube-proxy's has `nft`, too.
    """
    folder = Path(os.environ["KUBE_BIN"])
    settings = directory / "kubeadm.yaml"
    settings.write_text(configuration())
    for tag in _output(
        str(folder / "kubeadm"), "config", "images", "list", "--config", str(settings)
    ).split():
        name = tag.rpartition("/")[2].partition(":")[0]
        if name == "pause":
            yield write_image(
                directory / name, [tag, PAUSE_TAG], config={"Entrypoint": ["/bin/sh", "-c", PAUSE]}
            )
            continue
        files = {f"usr/local/bin/{name}": folder / name}
        if name == "kube-proxy":
            nft = shutil.which("nft") or ""
            files |= {path: Path(path) for path in [nft, *re.findall(r"/\S+", _output("ldd", nft))]}
        layer = make_layer(ImageEntry(path, data=file.read_bytes()) for path, file in files.items())
        yield write_image(directory / name, [tag], layers=[layer], config={})


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def prepare(machine: Machine, package: Path) -> None:
    """Do what an administrator of a node does before `kubeadm init` or `join`."""
    put(machine, "/etc/systemd/system/var-lib-containerd.mount", MOUNT)
    machine.check(
        "systemctl stop containerd; systemctl daemon-reload; systemctl enable --now var-lib-containerd.mount",
        LONG,
    )
    use_containerd_2(machine)
    machine.report("install the package and kubeadm's unit")
    machine.check("systemctl mask kubengine")  # the package would start its own unit
    machine.check(f"dpkg --force-unsafe-io --install {package}", LONG)
    place = bring(machine, Path(os.environ["KUBE_BIN"]), "kubeadm", "kubectl")
    machine.check(f"ln -sf {place}/kubeadm {place}/kubectl /usr/local/bin")
    put(machine, f"/etc/systemd/system/{UNIT}", SERVICE)
    put(machine, f"/etc/systemd/system/{UNIT}.d/10-kubeadm.conf", DROP_IN)
    put(machine, "/etc/sysctl.d/kubernetes.conf", SYSCTL)
    machine.check(f"sysctl -q --system; systemctl daemon-reload; systemctl enable {UNIT}", LONG)
    put(machine, CONFIG, configuration())
