"""Which of two states of an object is the newer one.

Answers, watches of several ages and lists overtake each other; versions say what follows what. They grow, as
long as the server keeps its store: one that was set back to an older one counts on from there. Who hears a
whole list takes it as it is (`engine.cluster.watching`), so nothing is compared with what was lost.
"""

from __future__ import annotations

from engine.api.meta import ObjectMeta


def is_newer(meta: ObjectMeta, known: ObjectMeta) -> bool:
    """Whether `meta` follows `known`, both of one name.

    Versions of one object that are numbers can be compared (Kubernetes v1.35, KEP-5504); others, and another
    object of the same name, are as they come.
    """
    versions = meta.resource_version, known.resource_version
    if meta.uid != known.uid or not all(version.isdecimal() for version in versions):
        return True
    return int(versions[0]) > int(versions[1])
