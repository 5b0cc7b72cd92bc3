"""The Debian package and the wheel on a fresh machine, as `make deb` and `make dist` left them in dist/."""

from __future__ import annotations

import json

import pytest

from engine.node.nodeinfo.machine import kubelet_version
from tests.system.vm.machine import Machine
from tests.system.vm.node_in_machine import (
    CONFIG,
    FIELDS,
    LONG,
    PYTHON,
    ROOT,
    UNIT,
    put,
    start_agent,
    stop_agent,
    unit,
)
from tests.system.vm.pods_in_machine import wait_for_pods, write_pods

PACKAGE = max(ROOT.glob("dist/kubengine_*.deb"), default=None)
WHEEL = max(ROOT.glob("dist/kubengine-*.whl"), default=None)
NEWER = "/var/tmp/newer"
DPKG = "dpkg --force-confold --force-unsafe-io --install"


@pytest.mark.skipif(PACKAGE is None, reason="needs dist/kubengine_*.deb: `make deb`")
def test_package_from_install_to_purge(machine: Machine) -> None:
    put(machine, "/etc/kubengine/config.yaml", json.dumps(FIELDS))
    machine.report("install the package")
    machine.check(f"{DPKG} {PACKAGE}", LONG)
    write_pods(machine)
    before = wait_for_pods(machine)
    assert machine.check("kubengine cgroups check", LONG).strip() == "no faults"
    assert machine.check("/usr/bin/kubelet --version", LONG).strip() == f"Kubernetes {kubelet_version()}"
    pid = main_pid(machine)

    machine.report("upgrade it to a newer version")
    machine.check(f"dpkg-deb -R {PACKAGE} {NEWER}; sed -i 's/^Version: .*/&+newer/' {NEWER}/DEBIAN/control")
    machine.check(f"dpkg-deb -Znone -b {NEWER} {NEWER}.deb && rm -r {NEWER}; {DPKG} {NEWER}.deb", LONG)
    assert machine.check("dpkg-query -W -f '${Version}' kubengine").endswith("+newer")
    assert main_pid(machine) not in ("0", pid)
    assert wait_for_pods(machine) == before

    machine.report("purge it")
    machine.check("dpkg --purge kubengine", LONG)
    assert machine.run("systemctl is-active kubengine").output.strip() != "active"
    assert set(before.values()) <= set(machine.check("ctr -n k8s.io tasks ls -q").split())
    places = "/usr/bin/kubengine /usr/bin/kubelet /usr/lib/kubengine /etc/kubengine"
    assert machine.check(f"ls -d {places} 2>/dev/null; true") == ""


def main_pid(machine: Machine) -> str:
    return machine.check("systemctl show kubengine -p MainPID --value").strip()


@pytest.mark.skipif(WHEEL is None, reason="needs dist/kubengine-*.whl: `make dist`")
def test_wheel(machine: Machine) -> None:
    """What the wheel requires comes from the checkout's environment: the machine has no package index."""
    machine.report("install the wheel")
    site = machine.check(f"{PYTHON} -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'").strip()
    machine.check(f"{PYTHON} -m venv /opt/wheel", LONG)
    machine.check(f"/opt/wheel/bin/pip install -q --no-index --no-deps {WHEEL}", LONG)
    machine.check(f"echo {site} > $(ls -d /opt/wheel/lib/python3*/site-packages)/required.pth")
    found = machine.check("cd /; /opt/wheel/bin/python -c 'import engine; print(engine.__file__)'").strip()
    assert found.startswith("/opt/wheel/")
    put(machine, f"/etc/systemd/system/{UNIT}", unit(f"/opt/wheel/bin/kubengine run --config {CONFIG}"))
    machine.check("systemctl daemon-reload")
    write_pods(machine)
    start_agent(machine)
    wait_for_pods(machine)
    stop_agent(machine)
