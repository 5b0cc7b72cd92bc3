"""What of a pod's spec names other objects of the API: config maps, secrets, tokens, trust bundles."""

from __future__ import annotations

import msgspec

from engine.api.struct import Int32, Struct, written


class KeySelector(Struct):
    """Select one key of a config map or a secret."""

    key: str
    name: str = ""
    optional: bool | None = None


class FileKeySelector(Struct):
    """Select one variable of a file in a volume, which earlier containers write."""

    volume_name: str
    path: str
    key: str
    optional: bool | None = None


class WholeObject(Struct):
    """Select all keys of a config map or a secret."""

    name: str = ""
    optional: bool | None = None


class KeyToPath(Struct):
    """Map a key to a file; a `mode` of None means the volume's default."""

    key: str
    path: str
    mode: Int32 | None = None


class ObjectProjection(Struct):
    """Project keys of a config map or a secret as files of a volume; all keys without `items`."""

    name: str = ""
    items: list[KeyToPath] | None = None
    optional: bool | None = None


class ConfigMapVolume(Struct):
    name: str = ""
    items: list[KeyToPath] | None = None
    default_mode: Int32 | None = None
    optional: bool | None = None


class SecretVolume(Struct):
    secret_name: str = ""
    items: list[KeyToPath] | None = None
    default_mode: Int32 | None = None
    optional: bool | None = None


class ServiceAccountTokenProjection(Struct):
    """Project a service account token; an empty `audience` means the API server's own."""

    path: str
    audience: str = ""
    expiration_seconds: int = written(3600)


class LabelSelectorRequirement(Struct):
    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Struct):
    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelSelectorRequirement] | None = None


class ClusterTrustBundleProjection(Struct):
    """Project one bundle by its name, or the bundles of a signer that a selector matches."""

    path: str
    name: str | None = None
    signer_name: str | None = None
    label_selector: LabelSelector | None = None
    optional: bool | None = None


class PodCertificateProjection(Struct):
    """Project a key and a certificate of the pod's own, which `signer_name` signs, to up to three files."""

    signer_name: str = ""
    key_type: str = ""
    max_expiration_seconds: Int32 | None = None
    credential_bundle_path: str = ""
    key_path: str = ""
    certificate_chain_path: str = ""
    user_annotations: dict[str, str] | None = None


class PersistentVolumeClaimVolume(Struct):
    claim_name: str = ""
    read_only: bool = False


class SecretReference(Struct):
    name: str = ""
    namespace: str = ""


class NFSVolume(Struct):
    """Name a directory that an NFS server exports."""

    server: str = ""
    path: str = ""
    read_only: bool = False


class FCVolume(Struct):
    """Name a Fibre Channel disk: a LUN of targets, or one with an identifier."""

    target_wwns: list[str] | None = msgspec.field(default=None, name="targetWWNs")
    lun: Int32 | None = None
    fs_type: str = ""
    read_only: bool = False
    wwids: list[str] | None = None


class ISCSIVolume(Struct):
    """Name a LUN of an iSCSI target. `secret_ref` has the CHAP credentials; its namespace is used only in a
    persistent volume.
    """

    target_portal: str = ""
    iqn: str = ""
    lun: Int32 = written(0)
    iscsi_interface: str = written("default")
    fs_type: str = ""
    read_only: bool = False
    portals: list[str] | None = None
    chap_auth_discovery: bool = False
    chap_auth_session: bool = False
    secret_ref: SecretReference | None = None
    initiator_name: str | None = None
