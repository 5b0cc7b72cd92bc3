"""What of a pod's spec names other objects of the API: config maps, secrets, tokens, trust bundles."""

from __future__ import annotations

from typing import Any

from engine.api.struct import Struct, written


class KeySelector(Struct):
    """One key of a config map or a secret."""

    key: str
    name: str = ""
    optional: bool | None = None


class WholeObject(Struct):
    """All keys of a config map or a secret."""

    name: str = ""
    optional: bool | None = None


class KeyToPath(Struct):
    """`mode` is the file's, the volume's default where it is None."""

    key: str
    path: str
    mode: int | None = None


class ObjectProjection(Struct):
    """Keys of a config map or a secret as files of a projected volume; all of them without `items`."""

    name: str = ""
    items: list[KeyToPath] | None = None
    optional: bool | None = None


class ConfigMapVolume(Struct):
    name: str = ""
    items: list[KeyToPath] | None = None
    default_mode: int | None = None
    optional: bool | None = None


class SecretVolume(Struct):
    secret_name: str = ""
    items: list[KeyToPath] | None = None
    default_mode: int | None = None
    optional: bool | None = None


class ServiceAccountTokenProjection(Struct):
    """`audience` is the API server's own where it is empty."""

    path: str
    audience: str = ""
    expiration_seconds: int = written(3600)


class ClusterTrustBundleProjection(Struct):
    path: str
    name: str | None = None
    signer_name: str | None = None
    label_selector: dict[str, Any] | None = None
    optional: bool | None = None


class PersistentVolumeClaimVolume(Struct):
    claim_name: str = ""
    read_only: bool = False
