"""Converts cpu.shares of cgroup v1 to cpu.weight of v2, in one table for pure and acting code.

`linear` is the rule of kubelets up to 1.34 and of older OCI runtimes, `logarithmic` that of runc ≥ 1.3.2,
crun ≥ 1.23 and newer kubelets.
"""

from __future__ import annotations

import math
from typing import Final, Literal

WeightFormula = Literal["linear", "logarithmic"]
MIN_SHARES: Final = 2
MAX_SHARES: Final = 262_144
MAX_WEIGHT: Final = 10_000


def cpu_weight(shares: int, formula: WeightFormula = "linear") -> int:
    """Return the weight, between 1 and 10000; shares below 2 and above 262144 count as these."""
    shares = min(max(shares, MIN_SHARES), MAX_SHARES)
    if formula == "linear":
        return 1 + (shares - MIN_SHARES) * (MAX_WEIGHT - 1) // (MAX_SHARES - MIN_SHARES)
    log = math.log2(shares)
    return math.ceil(10 ** ((log * log + 125 * log) / 612 - 7 / 34))
