"""Compares resource versions of an object.

Responses, watches and lists overtake each other; versions tell which state is newer. They grow as long as
the server keeps its store; a store that was reset counts on from its old state. A complete list is therefore
taken as it is (`engine.cluster.watching`), and nothing is compared with what was lost.
"""

from __future__ import annotations

from engine.api.meta import ObjectMeta


def is_newer(meta: ObjectMeta, known: ObjectMeta) -> bool:
    """Tell whether `meta` follows `known`; both have the same name.

    Numeric versions of one object can be compared (Kubernetes v1.35, KEP-5504); others, and another object
    of the same name, count in the order of arrival.
    """
    versions = meta.resource_version, known.resource_version
    if meta.uid != known.uid or not all(version.isdecimal() for version in versions):
        return True
    return int(versions[0]) > int(versions[1])
