"""Reads documents that users write: Pod manifests and configurations, in the kubelet's YAML dialect."""

from engine.api.documents.reader import (
    CONTAINERD,
    as_written,
    convert,
    load_config,
    load_pods,
    parse_documents,
    parse_pods,
    read_text,
    read_with_status,
    unknown_fields,
)

__all__ = [
    "CONTAINERD",
    "as_written",
    "convert",
    "load_config",
    "load_pods",
    "parse_documents",
    "parse_pods",
    "read_text",
    "read_with_status",
    "unknown_fields",
]
