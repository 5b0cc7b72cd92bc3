"""Assigns ranges of host ids to pods with user namespaces (`hostUsers: false`).

Each pod has one range, stored in the file `userns` of its directory in the kubelet's format, so that each
agent finds the other's. The file contains the range twice, for users and for groups, which reveals damage.
Source: kubelet v1.36 `userns`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput, Refused
from engine.api.pod import Pod
from engine.host.checksummed_file import set_aside
from engine.host.files import replace_file
from engine.node.runtime_view.runtime_health import RuntimeFeatures
from engine.wire import cri_v1_pb2 as cri

FILE: Final = "userns"
IDS_PER_POD: Final = 65536
_ALL_IDS: Final = 1 << 32

log = logging.getLogger("kubengine.pods")


class _Mapping(msgspec.Struct, rename="camel"):
    host_id: int
    container_id: int
    length: int


class _Mappings(msgspec.Struct, rename="camel"):
    uid_mappings: list[_Mapping]
    gid_mappings: list[_Mapping]


def ids_per_pod(config: KubeletConfiguration) -> int:
    """Return how many user ids each pod with its own users gets."""
    settings = config.user_namespaces
    return IDS_PER_POD if settings is None else settings.ids_per_pod or IDS_PER_POD


class UserNamespaceAllocator:
    """Allocate ranges of user ids of one node; `directories()` returns the directories of pods on disk."""

    def __init__(self, pods: Path, ids_per_pod: int = IDS_PER_POD) -> None:
        """Raise `InvalidInput` if the number of ids is not a multiple of 65,536."""
        if ids_per_pod <= 0 or ids_per_pod % IDS_PER_POD:
            text = f"expected a multiple of {IDS_PER_POD}, got {ids_per_pod}"
            raise InvalidInput(text, subject="userNamespaces.idsPerPod")
        self._pods = pods
        self._length = ids_per_pod
        self._ids = range(ids_per_pod, _ALL_IDS)

    def use_ids(self, ids: range, most_pods: int) -> None:
        """Allocate new ranges from `ids`; pods keep the ranges that they have.

        Raises `InvalidInput` if the ids are not whole ranges, include ids of the host's own users, or are
        too few for the number of pods.
        """
        fault = ""
        if ids.start % self._length or len(ids) % self._length:
            fault = f"expected whole ranges of {self._length} ids, got {len(ids)} from {ids.start}"
        elif ids.start < self._length:
            fault = f"the first id must be at least {self._length}, got {ids.start}"
        elif len(ids) // self._length < most_pods:
            fault = f"expected {self._length} ids for each of {most_pods} pods, got {len(ids)}"
        if fault:
            raise InvalidInput(fault, subject="subordinate ids of the user kubelet")
        self._ids = ids

    def of(self, pod: Pod, handler: str, features: RuntimeFeatures) -> cri.UserNamespace | None:
        """Return the pod's range, assigned now if it has none; None for a pod that uses the host's ids.

        Raises `Refused` if the runtime's handler does not support it, or no range is left.
        """
        if pod.spec.host_users is not False:
            return None
        if not features.of_handler(handler).user_namespaces:
            raise Refused(_unsupported(handler, features))
        file = self._pods / pod.uid / FILE
        first = self._read(file)
        if first is None:
            first = self._free()
            mapping = _Mapping(host_id=first, container_id=0, length=self._length)
            content = _Mappings(uid_mappings=[mapping], gid_mappings=[mapping])
            replace_file(file, encode_json(content), mode=0o600)
        ids = [cri.IDMapping(host_id=first, container_id=0, length=self._length)]
        return cri.UserNamespace(mode=cri.POD, uids=ids, gids=ids)

    def _free(self) -> int:
        used = {first for file in self._files() if (first := self._read(file)) is not None}
        ranges = range(self._ids.start, self._ids.stop - self._length + 1, self._length)
        found = next((first for first in ranges if first not in used), None)
        if found is None:
            raise Refused("could not find an empty slot to allocate a user namespace")
        return found

    def _files(self) -> Iterable[Path]:
        return self._pods.glob(f"*/{FILE}")

    def _read(self, file: Path) -> int | None:
        """Return the first host id of a pod's range, or None if it has none that can be trusted."""
        try:
            return self._first(msgspec.json.decode(file.read_bytes(), type=_Mappings))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.error("%s: %s; %s; the pod gets another range", file, error, set_aside(file))
            return None

    def _first(self, mappings: _Mappings) -> int:
        users = mappings.uid_mappings
        if len(users) != 1 or users != mappings.gid_mappings or users[0].container_id != 0:
            raise ValueError("not one mapping of root, the same for users and groups")
        if users[0].length != self._length or users[0].host_id % self._length:
            text = f"expected a range of {self._length} ids, got {users[0].length} from {users[0].host_id}"
            raise ValueError(text)
        return users[0].host_id


def _unsupported(handler: str, features: RuntimeFeatures) -> str:
    who = f'RuntimeClass handler "{handler}"' if handler else "runtime"
    text = f"can't set `spec.hostUsers: false`, {who} does not support user namespaces"
    unknown = features.handlers and handler not in features.handlers
    return f'{text}: the handler "{handler}" is not known' if unknown else text
