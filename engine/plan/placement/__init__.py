"""Nodes for pods that have none, or have to leave theirs.

`room` knows what is free and chooses; `constraints` and `topology` are the scheduler's filters; `place` gives
a whole snapshot's waiting pods a node, by requests alone.
"""
