"""Compares resource versions of an object.

Responses, watches and lists arrive out of order; versions tell which state is newer. They grow unless the
server's store is replaced by an older one. A complete list is therefore accepted without a comparison
(`engine.cluster.watching`).
"""

from __future__ import annotations

from engine.api.meta import ObjectMeta


def is_newer(meta: ObjectMeta, known: ObjectMeta) -> bool:
    """Tell whether `meta` follows `known`; both have the same name.

    Numeric versions of one object, however long, can be compared (Kubernetes v1.35, KEP-5504); others, and
    another object of the same name, count in the order of arrival.
    """
    version, known_version = meta.resource_version, known.resource_version
    if meta.uid != known.uid or not (_is_number(version) and _is_number(known_version)):
        return True
    return (len(version), version) > (len(known_version), known_version)


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdecimal() and not version.startswith("0")
