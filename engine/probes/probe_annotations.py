"""Parses the annotation with probe settings beyond Kubernetes' fields. Pure.

JSON: container → `liveness`, `readiness` or `startup` → the settings of that probe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from engine.api.errors import InvalidInput
from engine.api.pod import Pod

ANNOTATION: Final = "kubengine.dev/probes"
MIN_PERIOD_MS: Final = 10


class ProbeAnnotations(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, omit_defaults=True
):
    """Hold what a pod's annotations change in a probe; times in milliseconds. None changes nothing.

    `start_period_milliseconds` is the period until the container is started or ready; 0 means the same period
    as later. `network` says whether the probe's socket is opened in the node's network or in the pod's. `tls`
    is gRPC over TLS, without verification of the certificate. `http2` is HTTP/2 without TLS (h2c), by prior
    knowledge.
    """

    period_milliseconds: int | None = None
    timeout_milliseconds: int | None = None
    initial_delay_milliseconds: int | None = None
    start_period_milliseconds: int | None = None
    network: Literal["node", "pod"] | None = None
    tls: bool = False
    http2: bool = False


class _OfContainer(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    liveness: ProbeAnnotations = ProbeAnnotations()
    readiness: ProbeAnnotations = ProbeAnnotations()
    startup: ProbeAnnotations = ProbeAnnotations()


def read_annotations(pod: Pod) -> Mapping[str, Mapping[str, ProbeAnnotations]]:
    """Return the settings by container and type of probe. Raises `InvalidInput` naming the annotation."""
    text = pod.annotations.get(ANNOTATION)
    if text is None:
        return {}
    try:
        found = msgspec.json.decode(text.encode(), type=dict[str, _OfContainer])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInput(str(error), subject=subject(pod)) from None
    annotations: dict[str, Mapping[str, ProbeAnnotations]] = {}
    for name, given in found.items():
        of_type = {"liveness": given.liveness, "readiness": given.readiness, "startup": given.startup}
        for type, annotated in of_type.items():
            _check(annotated, f"{subject(pod)}.{name}.{type}")
        annotations[name] = of_type
    return annotations


def subject(pod: Pod) -> str:
    return f"{pod.full_name} metadata.annotations[{ANNOTATION}]"


def _check(annotated: ProbeAnnotations, where: str) -> None:
    for label, value, least in (
        ("periodMilliseconds", annotated.period_milliseconds, MIN_PERIOD_MS),
        ("timeoutMilliseconds", annotated.timeout_milliseconds, 1),
        ("initialDelayMilliseconds", annotated.initial_delay_milliseconds, 0),
        ("startPeriodMilliseconds", annotated.start_period_milliseconds or None, MIN_PERIOD_MS),
    ):
        if value is not None and value < least:
            raise InvalidInput(f"{value} is less than {least}", subject=f"{where}.{label}")
