"""Score nodes by spread: the compiled kernels, or their twins with KUBENGINE_PURE=1."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.placement._spread_scores_py import add_spread, domains_among
else:
    from engine._fast.placement._spread_scores_c import (
        add_spread,
        domains_among,
    )

__all__ = ["add_spread", "domains_among"]
