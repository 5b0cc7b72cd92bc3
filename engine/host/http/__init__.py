"""Calls HTTP servers from threads and commands, within bounds of size and time."""
