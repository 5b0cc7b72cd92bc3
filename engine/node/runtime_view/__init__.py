"""Follows the state and health of the container runtime."""
