"""Counts what the node does for images that containers need, under the kubelet's metric names."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Literal

from engine.metrics import Registry

PULL_BUCKETS: Final = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
_SIZES: Final = tuple(
    megabytes << 20
    for megabytes in (
        *(0, 10, 100, 500, 1024, 5 * 1024, 10 * 1024, 20 * 1024, 30 * 1024, 40 * 1024, 60 * 1024, 100 * 1024),
    )
)
_SIZE_LABELS: Final = (
    *("0-10MB", "10MB-100MB", "100MB-500MB", "500MB-1GB", "1GB-5GB", "5GB-10GB", "10GB-20GB", "20GB-30GB"),
    *("30GB-40GB", "40GB-60GB", "60GB-100GB", "GT100GB"),
)
Check = Literal["credentialPolicyAllowed", "credentialRecordFound", "mustAuthenticate", "error"]
"""Why a pod may use an image that is present, or has to show a credential."""


def size_label(size: int) -> str:
    """Return the label of an image of so many bytes."""
    return _SIZE_LABELS[max(bisect_right(_SIZES, size) - 1, 0)]


class ImageMetrics:
    """The pulls of one node, and the checks before them."""

    def __init__(self, registry: Registry) -> None:
        self._pulls = registry.histogram(
            "kubelet_image_pull_duration_seconds",
            "Duration in seconds to pull an image, with the wait for other pulls.",
            ["image_size_in_bytes"],
            PULL_BUCKETS,
        )
        self._requests = registry.counter(
            "kubelet_image_manager_ensure_image_requests_total",
            "How often an image was made sure of for a container.",
            ["pull_policy", "present_locally", "pull_required"],
        )
        self._checks = registry.counter(
            "kubelet_imagemanager_image_mustpull_checks_total",
            "How often it was checked whether a pod has to show a credential for an image that is present.",
            ["result"],
        )

    def pulled(self, seconds: float, size: int) -> None:
        """Record a pull that succeeded, of an image of so many bytes."""
        self._pulls.observe(seconds, size_label(size))

    def ensured(self, policy: str, *, present: bool | None, pull: bool | None) -> None:
        """Count one request; None is for what an error kept from being known."""
        self._requests.inc(policy.lower(), _known(present), _known(pull))

    def checked(self, result: Check) -> None:
        """Count one check."""
        self._checks.inc(result)


def _known(value: bool | None) -> str:
    return "unknown" if value is None else str(value).lower()
