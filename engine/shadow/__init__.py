"""Computes the decisions of a live kubelet a second time, and compares them. It only reads.

`watch` reads the kubelet, the runtime and the machine. `kinds` has one pure module for each kind of decision.
`ledger` counts agreement and keeps the differences with the reasons of both sides. `report` shows them.
"""
