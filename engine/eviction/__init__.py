"""Eviction under pressure: signals, thresholds, the sequence of decisions, and the manager that acts."""
