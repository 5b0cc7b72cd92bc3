"""Measures the resource usage of the node, its pods and containers, and builds the summary."""
