"""Reads, follows, links and rotates container logs, and opens streams into containers."""
