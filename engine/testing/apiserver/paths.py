"""Parse paths of the API: group, version, namespace, resource, name and subresource."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PATH = re.compile(
    r"(?P<group>/api/v1|/apis/[^/]+/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?/?"
)
_NAMESPACE_ITSELF = re.compile(r"/api/v1/namespaces/(?P<name>[^/]+)(?:/(?P<subresource>status|finalize))?/?")


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """Hold a parsed path. `collection` is `/api/v1/pods` whatever the namespace; an empty `name` means all
    objects.
    """

    collection: str
    resource: str
    namespace: str
    name: str
    subresource: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.collection, self.namespace, self.name


def parse_path(path: str) -> ResourcePath | None:
    """Parse a path; None if it is not the path of a resource."""
    if itself := _NAMESPACE_ITSELF.fullmatch(path):
        return ResourcePath(
            "/api/v1/namespaces", "namespaces", "", itself["name"], itself["subresource"] or ""
        )
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    return ResourcePath(
        f"{found['group']}/{found['resource']}",
        found["resource"],
        found["namespace"] or "",
        found["name"] or "",
        found["subresource"] or "",
    )
