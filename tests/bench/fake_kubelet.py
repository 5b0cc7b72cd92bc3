#!/usr/bin/env python3
"""A stand-in for a kubelet binary: insists on what a real one needs, then is the engine.

FAKE_KUBELET_RECORD names a file that gets the command line and the configuration.
"""

import json
import os
import sys
from pathlib import Path

from engine.api.duration import Duration

VERSION = os.environ.get("FAKE_KUBELET_VERSION", "v1.33.4")
KNOWN = {"--config", "--root-dir", "--cert-dir", "--hostname-override", "--v"}
SINCE = {"podLogsDir": 30, "imageMaximumGCAge": 30, "failCgroupV1": 31}


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"Kubernetes {VERSION}\n")
        return
    words = [part for argument in sys.argv[1:] for part in argument.split("=", 1)]
    flags = dict(zip(words[::2], words[1::2], strict=True))
    unknown = set(flags) - KNOWN
    if unknown:
        sys.exit(f"unknown flag: {unknown.pop()}")
    config = json.loads(Path(flags["--config"]).read_text())
    record = os.environ.get("FAKE_KUBELET_RECORD")
    if record:
        Path(record).write_text(json.dumps({"flags": flags, "config": config}))
    minor = int(VERSION.split(".")[1])
    for field, since in SINCE.items():
        if minor < since:  # decoded leniently: what is unknown is left out
            config.pop(field, None)
    legacy = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
    if minor >= 35 and legacy and config.get("failCgroupV1", True):
        sys.exit("kubelet is configured to not run on a host using cgroup v1")
    if config["apiVersion"] != "kubelet.config.k8s.io/v1beta1":
        sys.exit("no kind KubeletConfiguration is registered")
    if config["authorization"]["mode"] == "Webhook" or config["authentication"]["webhook"]["enabled"]:
        sys.exit("no client provided, cannot use webhook authorization")
    if not config["containerRuntimeEndpoint"].startswith("unix://"):
        sys.exit("endpoint is not set, please set containerRuntimeEndpoint")
    root = config.get("cgroupRoot", "")
    if config["cgroupsPerQOS"] and not any(Path("/sys/fs/cgroup").glob(f"*{root}")):
        sys.exit(f'cgroup-root ["{root}"] doesn\'t exist')
    ages = [
        config.get(f"image{which}GCAge", default) for which, default in (("Minimum", "2m"), ("Maximum", "0s"))
    ]
    least, most = (Duration.parse(age) for age in ages)
    if 0 < most <= least:
        sys.exit(f"imageMaximumGCAge {most} must be greater than imageMinimumGCAge {least}")
    plugins = Path("/var/lib/kubelet/device-plugins")  # a real one's is fixed
    if os.geteuid() == 0 and not plugins.samefile(Path(flags["--root-dir"], "device-plugins")):
        sys.exit(f"{plugins} is another agent's")
    if os.environ.get("FAKE_KUBELET_DIES"):
        sys.exit("failed to run Kubelet: it was told to")
    Path(flags["--cert-dir"]).mkdir(parents=True, exist_ok=True)
    understood = Path(flags["--config"]).with_suffix(".understood")
    understood.write_text(json.dumps(config))
    arguments = ["--config", str(understood), "--root-dir", flags["--root-dir"]]
    arguments += ["--node-name", flags["--hostname-override"], "--log-level", "warning"]
    os.execv(sys.executable, [sys.executable, "-m", "engine.cli", "run", *arguments])


main()
