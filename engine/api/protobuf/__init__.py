"""Encodes pods in the protobuf form of Kubernetes, for clients that read it instead of JSON."""
