"""What `make system-packages` leaves of a machine's services, seen in a copy of the system."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project.system_copy import in_a_copy_of_the_system

ROOT = Path(__file__).parents[2]
CONTROL = """Package: {name}
Version: 1
Architecture: all
Maintainer: nobody <nobody@localhost>
Description: a service
"""
SERVICE = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
ENABLE = "#!/bin/sh\nset -e\ndeb-systemd-helper enable {name}.service >/dev/null\n"
APT = """#!/bin/sh
case "$*" in *install*) exec dpkg --no-triggers --install {packages}/new-service.deb;; esac
"""
SCRIPT = """
rm -f /usr/sbin/policy-rc.d
cp {packages}/own.service /etc/systemd/system/own-service.service
systemctl -q enable own-service.service
make -s -C {root} system-packages CAN_APT=yes TEST_PACKAGES='new-service own-service' >&2
dpkg --status new-service | grep Status
for name in new own; do systemctl is-enabled $name-service.service || :; done
ls /usr/sbin/policy-rc.d 2>/dev/null || echo no policy
"""

needs = [
    name for name in ("dpkg-deb", "make", "systemctl", "deb-systemd-helper") if shutil.which(name) is None
]


@pytest.mark.root
@pytest.mark.skipif(bool(needs), reason=f"needs Debian with systemd: {', '.join(needs)}")
def test_services_that_tests_need_stay_off_at_boot_and_others_as_they_were(tmp_path: Path) -> None:
    """One service comes with its package; one of another package's name is somebody's own."""
    tree = tmp_path / "tree"
    for name in ("DEBIAN", "lib/systemd/system"):
        (tree / name).mkdir(parents=True)
    (tree / "lib/systemd/system/new-service.service").write_text(SERVICE)
    (tmp_path / "own.service").write_text(SERVICE)
    (tree / "DEBIAN/control").write_text(CONTROL.format(name="new-service"))
    program(tree / "DEBIAN/postinst", ENABLE.format(name="new-service"))
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", tree, tmp_path / "new-service.deb"],
        check=True,
        capture_output=True,
    )
    program(tmp_path / "bin/apt-get", APT.format(packages=tmp_path))
    lines = in_a_copy_of_the_system(
        SCRIPT.format(packages=tmp_path, root=ROOT),
        tmp_path / "scratch",
        PATH=f"{tmp_path}/bin:{os.environ['PATH']}",
        SYSTEMD_OFFLINE="1",
    )
    assert lines == ["Status: install ok installed", "disabled", "enabled", "no policy"]


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
