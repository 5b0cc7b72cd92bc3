"""Carries each pod through its life: worker, sync, starts, stops, probing and status."""
