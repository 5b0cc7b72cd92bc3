"""Load the kubelet's configuration from its file, its drop-in directory and its flags, in that order."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.api.config import KubeletConfiguration, keep_zeros
from engine.api.documents import CONTAINERD, convert, parse_documents, read_text, unknown_fields
from engine.api.documents.kubelet_validation import validate
from engine.api.errors import InvalidInput
from engine.cli.agent.kubelet_flags import apply_flags, zeros

KIND = "KubeletConfiguration"
PATHS = (
    ("staticPodPath",),
    ("authentication", "x509", "clientCAFile"),
    ("tlsCertFile",),
    ("tlsPrivateKeyFile",),
    ("resolvConf",),
    ("volumePluginDir",),
    ("podLogsDir",),
)
"""Path fields. A relative path in the file is resolved against the file's directory, one in a drop-in or a
flag against the working directory.
"""

log = logging.getLogger("kubengine.config")


def load_kubelet_config(
    file: Path | None, directory: Path | None, flags: Mapping[str, str]
) -> KubeletConfiguration:
    """Merge the file, the drop-ins and the flags into one configuration.

    The drop-ins are all `*.conf` files below the directory, in the order of their paths. Objects in them are
    merged field by field; lists are replaced. Raise InvalidInput, naming the file or flag.
    """
    document: dict[str, Any] = {"kind": KIND}
    if file is not None:
        document = merged(document, _read(file))
        _make_absolute(document, file.absolute().parent)
    for path in drop_ins(directory):
        document = merged(document, _read(path))
    # Last, and again after defaulting: for a flag, a zero can be meant where a file's is the default.
    apply_flags(document, flags)
    subject = str(file or directory or "flags")
    config = convert(document, KubeletConfiguration, subject)
    keep_zeros(config, zeros(flags))
    validate(config, subject)
    config.container_runtime_endpoint = config.container_runtime_endpoint or CONTAINERD
    return config


def drop_ins(directory: Path | None) -> list[Path]:
    if directory is None:
        return []
    if not directory.is_dir():
        raise InvalidInput("no such directory", subject=str(directory))
    # Paths sort by their parts, as `filepath.WalkDir` visits them: all of a directory in one place.
    return sorted(path for path in directory.rglob("*.conf") if path.is_file())


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `under` with `over` merged on top: objects field by field, everything else replaced; null
    changes nothing.
    """
    both = dict(under)
    for name, value in over.items():
        before = both.get(name)
        # The kubelet decodes each file before it merges, and a null is absent then (KEP-3983).
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            both[name] = merged(before, value)
        elif value is not None:
            both[name] = value
    return both


def _make_absolute(document: dict[str, Any], directory: Path) -> None:
    for *sections, name in PATHS:
        section: Any = document
        for each in sections:
            section = section.get(each) if isinstance(section, dict) else None
        if isinstance(section, dict) and isinstance(section.get(name), str) and section[name]:
            section[name] = os.path.normpath(directory / section[name])


def _read(path: Path) -> dict[str, Any]:
    documents = parse_documents(read_text(path), str(path))
    if len(documents) != 1 or documents[0].get("kind") != KIND:
        kinds = ", ".join(repr(each.get("kind")) for each in documents) or "nothing"
        raise InvalidInput(f"kind: expected one {KIND}, got {kinds}", subject=str(path))
    for field in unknown_fields(documents[0], KubeletConfiguration):
        log.warning("%s: %s: unknown field", path, field)
    return documents[0]
