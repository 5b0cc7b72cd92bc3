"""Obtains, stores and rotates the node's client and serving certificates."""
