"""Determines the runtime's `cpu.weight` formula, so that pods and containers agree.

runc since 1.3.2 and crun since 1.23 use the logarithmic formula, older versions the linear one; the kubelet
followed in 1.36 (kubernetes/kubernetes#131216).
"""

from __future__ import annotations

import re
import subprocess
from typing import Literal

from engine.api.amounts.cpu_weight import WeightFormula
from engine.api.kubengine_config import CgroupsSection
from engine.host.child import which

_SINCE = {"runc": (1, 3, 2), "crun": (1, 23, 0)}
_VERSION = re.compile(r"\b(runc|crun) version v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
_DEADLINE = 5.0


def formula_of(version_text: str) -> WeightFormula | None:
    """Return the formula for the output of `runc --version` or `crun --version`; None for another runtime."""
    match = _VERSION.search(version_text)
    if match is None:
        return None
    version = (int(match[2]), int(match[3]), int(match[4] or 0))
    return "logarithmic" if version >= _SINCE[match[1]] else "linear"


def choose_formula(version: Literal[1, 2], section: CgroupsSection) -> tuple[WeightFormula, str]:
    """Return the formula for a node and the reason: the configured one, or with `auto` that of
    its runtime.
    """
    if version == 1:
        return "linear", "cgroup v1 has shares, not weights"
    if section.cpu_weight == "auto":
        return detect_formula(section.oci_runtime)
    return section.cpu_weight, "configured"


def detect_formula(oci_runtime: str = "") -> tuple[WeightFormula, str]:
    """Return the formula of the OCI runtime at this path (by default runc, else crun, on the PATH), and the
    reason.

    Returns linear if there is none.
    """
    candidates = [oci_runtime] if oci_runtime else ["runc", "crun"]
    for candidate in candidates:
        path = which(candidate)
        if path is None:
            continue
        try:
            answer = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=_DEADLINE, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        formula = formula_of(answer)
        if formula is not None:
            return formula, f"{path}: {answer.splitlines()[0]}"
    return "linear", "no OCI runtime found"
