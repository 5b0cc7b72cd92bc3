"""Reads the pods that the node should run: manifests from a directory, pods from an API server."""
