"""The choice of exclusive CPUs over sets of CPUs as integers: compiled, or the plain twin."""

from engine._fast._cpu_assignment_py import Layout, take_distributed, take_packed

__all__ = ["Layout", "take_distributed", "take_packed"]
