"""Compares decisions: one pure module for each kind, over `observation`s, with `comparison`s as result.

Some remember earlier observations.
"""
