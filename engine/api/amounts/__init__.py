"""Converts amounts: CPU weights, eviction thresholds, sizes for people."""
