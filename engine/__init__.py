"""Kubengine: a node resource engine for Kubernetes.

Users' types are in `engine.api`; the node agent is `engine.node.Node`, the planner `engine.plan`. Each
room's managers can be embedded alone: they get their configuration, pods, clock and peers as arguments.
`docs/architecture.md` lists the rooms and what each may import. This file imports nothing, so that
everything is loaded only when it is needed.
"""
