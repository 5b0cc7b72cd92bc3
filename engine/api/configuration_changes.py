"""Name the fields in which two KubeletConfigurations differ, and what a change of each does to a node.

Source: the state files and start-up checks of kubelet v1.36; the values themselves are computed by the
packages that own them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.encoding.json_text import json_encoder
from engine.api.struct import Struct

Effect = Literal["restarts", "refuses to start", "changes"]


_encode = json_encoder(str)


class ConfigurationChange(NamedTuple):
    """Describe a change of one field: its path, its value before and after, and the effect on running pods.

    An `effect` is `restarts` (every pod gets a new sandbox), `refuses to start` (the kubelet does not start
    until a state file is removed), or `changes` (only values that are computed from the field).
    """

    field: str
    before: Any
    after: Any
    effect: Effect
    why: str


_CPU_FILE: Final = "cpu_manager_state was written under another policy; drain the node and remove the file"
_MEMORY_FILE: Final = "memory_manager_state was written under another policy; drain the node and remove it"
_EFFECTS: Final[dict[str, tuple[Effect, str]]] = {
    "cgroupDriver": ("restarts", "every cgroup of a pod has another name"),
    "cgroupRoot": ("restarts", "every cgroup of a pod has another parent"),
    "containerRuntimeEndpoint": ("restarts", "the pods of the old runtime are not in the new one"),
    "cpuManagerPolicy": ("refuses to start", _CPU_FILE),
    "memoryManagerPolicy": ("refuses to start", _MEMORY_FILE),
    "reservedMemory": ("refuses to start", _MEMORY_FILE),
}


def configuration_changes(
    before: KubeletConfiguration, after: KubeletConfiguration
) -> list[ConfigurationChange]:
    """Return the changed fields by their names in a file, in the order of the type."""
    found = []
    for field, old, new in _differing(before, after):
        effect, why = _EFFECTS.get(field, ("changes", ""))
        if field == "cgroupsPerQOS" and after.cgroups_per_qos:
            # Off to on. The other way, running containers stay in the cgroups that they have.
            effect, why = "restarts", "no pod has a cgroup yet"
        elif field == "reservedSystemCPUs" and after.cpu_manager_policy == "static":
            effect, why = "refuses to start", "if a pod holds one of the newly reserved CPUs"
        found.append(ConfigurationChange(field, old, new, effect, why))
    return found


def _differing(before: Struct, after: Struct, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    for field in msgspec.structs.fields(type(before)):
        old, new = getattr(before, field.name), getattr(after, field.name)
        name = f"{path}{field.encode_name}"
        if isinstance(old, Struct) and type(old) is type(new):
            yield from _differing(old, new, f"{name}.")
        # An empty cgroupRoot means the root, so that naming it changes nothing.
        elif old != new and not (name == "cgroupRoot" and (old or "/") == (new or "/")):
            yield name, _plain(old), _plain(new)


def _plain(value: Any) -> Any:
    """Return a value ready for JSON."""
    return msgspec.json.decode(_encode(value))
