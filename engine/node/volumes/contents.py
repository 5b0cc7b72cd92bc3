"""Computes the current files of configMap, secret, downwardAPI and projected volumes.

Paths that lead outside (`..`, or absolute) are refused by `host.atomic_writer` when the files are written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from engine.admission.selectors import selects_labels
from engine.api.errors import InvalidInput, KubengineError, NotFound
from engine.api.objects.cluster_objects import ClusterTrustBundle, ConfigMap, Secret
from engine.api.pod import DownwardAPIVolume, Pod, ProjectedVolume, Volume, VolumeProjection
from engine.api.quantity import Quantity
from engine.api.references import (
    ClusterTrustBundleProjection,
    KeyToPath,
    PodCertificateProjection,
    ServiceAccountTokenProjection,
)
from engine.api.struct import PartlyShown
from engine.cluster.certificates.pem import certificate_block, pem_blocks
from engine.host.atomic_writer import PublishedFile
from engine.node.controlplane.control_plane import ClusterObjects
from engine.node.spec.environment import field_value, resource_value
from engine.node.spec.security import effective_security

DEFAULT_FILE_MODE = 0o644
_OWN_MODE = 0o600

Files = dict[str, PublishedFile]


class Contents(PartlyShown, frozen=True):
    """Hold the files of a volume. They must be computed again at `renew_at` (the node's steady clock), even
    if no object changes.
    """

    HIDDEN = frozenset(("files",))
    files: Mapping[str, PublishedFile]
    renew_at: float = math.inf


class ContentSource(msgspec.Struct, frozen=True):
    """Hold the sources of one pod: the pod, its cluster's objects, and the downward API values of its
    node.
    """

    pod: Pod
    objects: ClusterObjects
    host_ips: tuple[str, ...]
    allocatable: Mapping[str, Quantity]

    async def of(self, volume: Volume) -> Contents:
        """Return the files of a volume. Raises `KubengineError` with the kubelet's message."""
        if volume.downward_api is not None:
            mode = volume.downward_api.default_mode
            return Contents(self._downward(volume.downward_api, _or_default(mode)))
        if volume.config_map is not None:
            source = volume.config_map
            mode, optional = _or_default(source.default_mode), bool(source.optional)
            return Contents(await self._config_map(source.name, source.items, mode, optional))
        if volume.secret is not None:
            secret = volume.secret
            mode, optional = _or_default(secret.default_mode), bool(secret.optional)
            return Contents(await self._secret(secret.secret_name, secret.items, mode, optional))
        if volume.projected is None:
            raise InvalidInput("unknown volume source")
        return await self._projected(volume.name, volume.projected)

    async def _projected(self, name: str, volume: ProjectedVolume) -> Contents:
        """Return the files of a projected volume; all errors are reported together."""
        mode = _or_default(volume.default_mode)
        files: Files = {}
        renew_at = math.inf
        wrong: list[KubengineError] = []
        for index, source in enumerate(volume.sources or ()):
            try:
                if source.pod_certificate is not None:
                    part = Contents(await self._certificate(name, index, source.pod_certificate, mode))
                else:
                    part = await self._part(source, mode)
            except KubengineError as error:
                wrong.append(error)
                continue
            # If two sources have a file of the same path, the later source wins, as in the kubelet.
            files |= part.files
            renew_at = min(renew_at, part.renew_at)
        if len(wrong) == 1:
            raise wrong[0]
        if wrong:
            kind = NotFound if all(isinstance(error, NotFound) for error in wrong) else InvalidInput
            raise kind(f"[{', '.join(str(error) for error in wrong)}]")
        return Contents(files, renew_at)

    async def _part(self, source: VolumeProjection, mode: int) -> Contents:
        if source.secret is not None:
            secret = source.secret
            return Contents(await self._secret(secret.name, secret.items, mode, bool(secret.optional)))
        if source.config_map is not None:
            config_map = source.config_map
            return Contents(
                await self._config_map(config_map.name, config_map.items, mode, bool(config_map.optional))
            )
        if source.downward_api is not None:
            return Contents(self._downward(source.downward_api, mode))
        if source.service_account_token is not None:
            return await self._token(source.service_account_token, mode)
        if source.cluster_trust_bundle is not None:
            return await self._trust_bundle(source.cluster_trust_bundle, mode)
        return Contents({})

    async def _secret(self, name: str, items: list[KeyToPath] | None, mode: int, optional: bool) -> Files:
        try:
            secret = await self.objects.secret(self.pod, name)
        except NotFound:
            if not optional:
                raise
            secret = Secret()
        return selected_files(secret.data or {}, items, mode, optional, "references non-existent secret key")

    async def _config_map(self, name: str, items: list[KeyToPath] | None, mode: int, optional: bool) -> Files:
        try:
            config_map = await self.objects.config_map(self.pod, name)
        except NotFound:
            if not optional:
                raise
            config_map = ConfigMap()
        texts = {key: text.encode() for key, text in (config_map.data or {}).items()}
        # The API server refuses a key that is in both fields.
        data = (config_map.binary_data or {}) | texts
        return selected_files(data, items, mode, optional, "configmap references non-existent config key")

    async def _token(self, wanted: ServiceAccountTokenProjection, mode: int) -> Contents:
        token = await self.objects.token(self.pod, wanted.audience, wanted.expiration_seconds)
        return Contents({wanted.path: self._projected_file(token.text.encode(), mode)}, token.renew_at)

    async def _trust_bundle(self, wanted: ClusterTrustBundleProjection, mode: int) -> Contents:
        anchors = trust_anchors(wanted, await self.objects.trust_bundles(self.pod))
        return Contents({wanted.path: self._projected_file(anchors, mode)})

    async def _certificate(
        self, volume: str, index: int, wanted: PodCertificateProjection, mode: int
    ) -> Files:
        found = await self.objects.pod_certificate(self.pod, volume, index)
        files = {
            wanted.credential_bundle_path: found.key + found.chain,
            wanted.key_path: found.key,
            wanted.certificate_chain_path: found.chain,
        }
        return {path: self._projected_file(data, mode) for path, data in files.items() if path}

    def _projected_file(self, data: bytes, mode: int) -> PublishedFile:
        """Return a file of a token, a certificate or a trust bundle: mode 0600 if one user or the fsGroup
        reads it, else `mode`.
        """
        context, user = self.pod.spec.security_context, only_user(self.pod)
        if user is not None or (context is not None and context.fs_group is not None):
            mode = _OWN_MODE
        return PublishedFile(data, mode, -1 if user is None else user)

    def _downward(self, volume: DownwardAPIVolume, mode: int) -> Files:
        files = {}
        for item in volume.items or []:
            if item.field_ref is not None:
                text = field_value(self.pod, item.field_ref.field_path, host_ips=self.host_ips)
            elif item.resource_field_ref is not None:
                text = resource_value(self.pod, item.resource_field_ref, None, self.allocatable)
            else:
                raise InvalidInput(f"downwardAPI item {item.path}: expected fieldRef or resourceFieldRef")
            files[item.path] = PublishedFile(text.encode(), mode if item.mode is None else item.mode)
        return files


def selected_files(
    data: Mapping[str, bytes], items: list[KeyToPath] | None, mode: int, optional: bool, message: str
) -> Files:
    """Return all keys as files, or `items` if there are any.

    Raises `InvalidInput`, beginning with `message`, for a missing key that is not optional.
    """
    if not items:
        return {key: PublishedFile(value, mode) for key, value in data.items()}
    files = {}
    for item in items:
        value = data.get(item.key)
        if value is not None:
            files[item.path] = PublishedFile(value, mode if item.mode is None else item.mode)
        elif not optional:
            raise InvalidInput(f"{message}: {item.key}")
    return files


def only_user(pod: Pod) -> int | None:
    """Return the one user that all containers run as, if their spec says so."""
    users = {effective_security(pod, container).run_as_user for container in pod.all_containers}
    return users.pop() if len(users) == 1 else None


def _or_default(mode: int | None) -> int:
    return DEFAULT_FILE_MODE if mode is None else mode


def trust_anchors(wanted: ClusterTrustBundleProjection, bundles: Mapping[str, ClusterTrustBundle]) -> bytes:
    """Return the certificates as PEM; empty if there are none and the source is optional.

    Each certificate is there once, in a stable order; a kubelet v1.36 (`pkg/kubelet/clustertrustbundle`)
    shuffles them at each start. `bundles` are the cluster's by name. Raises `NotFound` in the kubelet's
    words, and `InvalidInput` for a source with neither a name nor a signer.
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
