"""Connects the node to its control plane, or stands in for one on a node that has none."""
