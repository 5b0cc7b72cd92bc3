"""Collects the certificates of a projected `clusterTrustBundle`: each once, in a stable order. Pure.

Source: kubelet v1.36 (`pkg/kubelet/clustertrustbundle`), which shuffles them at each start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.admission.selectors import selects_labels
from engine.api.errors import InvalidInput, NotFound
from engine.api.objects.cluster_objects import ClusterTrustBundle
from engine.api.references import ClusterTrustBundleProjection
from engine.cluster.certificates.pem import certificate_block, pem_blocks


def trust_anchors(wanted: ClusterTrustBundleProjection, bundles: Mapping[str, ClusterTrustBundle]) -> bytes:
    """Return the certificates as PEM; empty if there are none and the source is optional.

    `bundles` are the cluster's by name. Raises `NotFound` in the kubelet's words, and `InvalidInput` for a
    source with neither a name nor a signer.
    """
    return _pem(_selected(wanted, bundles))


def _selected(
    wanted: ClusterTrustBundleProjection, bundles: Mapping[str, ClusterTrustBundle]
) -> list[ClusterTrustBundle]:
    """Select bundles by signer: none without a selector, all with an empty one."""
    if wanted.name is not None:
        found = [bundles[wanted.name]] if wanted.name in bundles else []
        text = f'clustertrustbundle.certificates.k8s.io "{wanted.name}" not found'
        missing = f"while getting ClusterTrustBundle: {text}"
    elif wanted.signer_name is not None:
        found = [
            bundle
            for bundle in bundles.values()
            if bundle.spec.signer_name == wanted.signer_name
            and selects_labels(wanted.label_selector, bundle.metadata.labels or {})
        ]
        missing = "combination of signerName and labelSelector matched zero ClusterTrustBundles"
    else:
        raise InvalidInput("ClusterTrustBundle projection requires either name or signerName to be set")
    if not found and not wanted.optional:
        raise NotFound(missing)
    return found


def _pem(bundles: Iterable[ClusterTrustBundle]) -> bytes:
    anchors = {anchor for bundle in bundles for anchor in pem_blocks(bundle.spec.trust_bundle)}
    return "".join(map(certificate_block, sorted(anchors))).encode()
