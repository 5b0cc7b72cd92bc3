"""Nodes for pods that have none, by their requests alone: a rule of ours, not a scheduler's.

`room` says what is free and chooses; `place` gives a whole snapshot's waiting pods a node.
"""
