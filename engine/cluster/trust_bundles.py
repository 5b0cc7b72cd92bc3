"""Finds the newest API version of ClusterTrustBundle that the API server serves."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.api.errors import InvalidInput
from engine.api.objects.cluster_objects import ClusterTrustBundle
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.watching import WatchedResource

_NAME: Final = "clustertrustbundles"
_VERSIONS: Final = ("v1", "v1beta1", "v1alpha1")
_NOT_FOUND: Final = 404


class _Served(msgspec.Struct):
    name: str


class _Group(msgspec.Struct):
    resources: list[_Served] = []


async def trust_bundles_of(client: ApiClient) -> WatchedResource[ClusterTrustBundle]:
    """Return the resource. Raises `InvalidInput` if the server has none, `Refused` if it does not answer."""
    for version in _VERSIONS:
        path = f"/apis/certificates.k8s.io/{version}"
        try:
            group = await client.get(path, _Group)
        except ApiError as error:
            if error.code != _NOT_FOUND:
                raise
            continue
        if any(resource.name == _NAME for resource in group.resources):
            return WatchedResource(f"{path}/{_NAME}", ClusterTrustBundle)
    raise InvalidInput("the API server serves no ClusterTrustBundles")
