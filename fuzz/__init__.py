"""Harnesses that feed hostile bytes to whatever reads outside input; see README.md."""
