"""Compares decisions of a kubelet with our own: one pure module per kind of decision.

Each takes an `observation` and yields `comparison`s. Some hold state from earlier observations.
"""
