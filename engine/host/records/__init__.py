"""Keeps small records that the agent reads back after a restart in one file."""
