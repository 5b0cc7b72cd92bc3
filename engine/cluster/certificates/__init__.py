"""Obtains, stores and renews certificates: of the node, for its client and its server, and of its pods."""
