"""Apply the Container Device Interface: the edits that a device's specification file makes to a container.

Files (`*.json`, `*.yaml`) are read from the given directories, and a later directory overrides an earlier
one. A device is named `vendor.com/class=name` (Container Device Interface specification 0.8). Environment,
device nodes and mounts are applied, hooks are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.api.errors import InvalidInput
from engine.runtime.objects.failures import NoSuchObject, Unsupported
from engine.wire import cri_v1_pb2 as cri

DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))


def with_devices(config: cri.ContainerConfig, directories: Sequence[Path]) -> cri.ContainerConfig:
    """Return a copy of `config` with its CDI devices' edits. Raise NoSuchObject for an unknown device."""
    edited = cri.ContainerConfig()
    edited.CopyFrom(config)
    applied: set[str] = set()
    for device in config.CDI_devices:
        kind, equals, name = device.name.partition("=")
        if not equals:
            raise InvalidInput("expected vendor.com/class=name", subject=f"CDI device {device.name!r}")
        specification, found = _find(kind, name, directories)
        if specification.get("containerEdits") and kind not in applied:
            _apply(edited, specification["containerEdits"], device.name)
            applied.add(kind)
        _apply(edited, found.get("containerEdits") or {}, device.name)
    return edited


def _find(kind: str, name: str, directories: Sequence[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specification and its device. A file that cannot be read hides no device of another file:
    each driver writes its own.
    """
    faults = []
    for directory in reversed(directories):
        for path in sorted(directory.glob("*")) if directory.is_dir() else []:
            if path.suffix not in (".json", ".yaml"):
                continue
            try:
                document = _read(path)
            except FileNotFoundError:  # its driver has removed it since the directory was listed
                continue
            except InvalidInput as error:
                faults.append(str(error))
                continue
            if document.get("kind") == kind:
                for device in document.get("devices") or []:
                    if device.get("name") == name:
                        return document, device
    where = ", ".join(str(directory) for directory in directories)
    raise NoSuchObject(
        "; ".join([f"in no specification file in {where}", *faults[:1]]), subject=f"CDI device {kind}={name}"
    )


def _read(path: Path) -> dict[str, Any]:
    """Return a specification with devices that are mappings. Raise FileNotFoundError or InvalidInput."""
    import yaml

    try:
        text = path.read_text()
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise InvalidInput(str(error), subject=str(path)) from None
    if not isinstance(document, dict):
        raise InvalidInput("expected a mapping", subject=str(path))
    devices = document.get("devices") or []
    if not isinstance(devices, list) or not all(isinstance(device, dict) for device in devices):
        raise InvalidInput("devices: expected a list of mappings", subject=str(path))
    return document


def _apply(config: cri.ContainerConfig, edits: Mapping[str, Any], device: str) -> None:
    try:
        _apply_edits(config, edits, device)
    except (KeyError, TypeError, AttributeError) as error:
        detail = f"containerEdits do not have the form of the specification: {error}"
        raise InvalidInput(detail, subject=f"CDI device {device}") from None


def _apply_edits(config: cri.ContainerConfig, edits: Mapping[str, Any], device: str) -> None:
    if edits.get("hooks"):
        raise Unsupported(
            "its specification has hooks, which this runtime ignores", subject=f"CDI device {device}"
        )
    for pair in edits.get("env") or []:
        key, _, value = pair.partition("=")
        config.envs.append(cri.KeyValue(key=key, value=value.encode()))
    for node in edits.get("deviceNodes") or []:
        config.devices.append(
            cri.Device(
                container_path=node["path"],
                host_path=node.get("hostPath") or node["path"],
                permissions=node.get("permissions") or "rwm",
            )
        )
    for mount in edits.get("mounts") or []:
        config.mounts.append(
            cri.Mount(
                host_path=mount["hostPath"],
                container_path=mount["containerPath"],
                readonly="ro" in (mount.get("options") or []),
            )
        )
