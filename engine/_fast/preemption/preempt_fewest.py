"""Find the best set of a given number of candidates: the compiled kernel, or its twin with
KUBENGINE_PURE=1.
"""

from engine._fast._select import PURE

if PURE:
    from engine._fast.preemption._preempt_fewest_py import best_of_size
else:
    from engine._fast.preemption._preempt_fewest_c import best_of_size

__all__ = ["best_of_size"]
