"""Loops leave neither descriptors nor threads."""

from tests.leaks import nothing_leaks

__all__ = ["nothing_leaks"]
