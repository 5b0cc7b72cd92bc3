"""The README's node, which brings its own runtime: `make run`."""

from __future__ import annotations

import json

from tests.system.vm.machine import Machine
from tests.system.vm.node_in_machine import LONG, ROOT
from tests.system.vm.pods_in_machine import CGROUPS

SOCKET = f"{ROOT}/.run/kubengine.sock"


def test_make_run(machine: Machine) -> None:
    place = f"-p WorkingDirectory={ROOT} -p KillMode=mixed -p TimeoutStopSec={LONG:.0f}"
    machine.check(f"systemd-run -q --unit example {place} make run", LONG)

    def ready() -> bool:
        answer = machine.run(f"curl -s --max-time 60 --unix-socket {SOCKET} http://agent/pods")
        pods = json.loads(answer.output)["items"] or [] if answer.code == 0 else []
        conditions = [{c["type"]: c["status"] for c in pod["status"].get("conditions", ())} for pod in pods]
        return [each.get("Ready") for each in conditions] == ["True"] * 3

    machine.until(ready, LONG, "three ready pods")
    machine.check(f"test -e {CGROUPS}/kubengine-example")
    machine.report("interrupt it, as Ctrl-C does")
    machine.check("pkill -INT -f 'bin/python[^ ]* [^ ]*kubengine run'")
    machine.until(lambda: machine.run("systemctl -q is-active example").code != 0, LONG, "make to end")
    assert machine.run(f"test -e {CGROUPS}/kubengine-example").code != 0
