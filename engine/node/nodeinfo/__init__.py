"""Describes the node: machine, addresses, resources, events and its Node object."""
