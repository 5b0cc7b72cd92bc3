"""KubengineConfiguration (`kubengine.dev/v1alpha1`): what goes beyond the kubelet, off by default.

One section per room. It is a document of its own, in the same file as the KubeletConfiguration or in
another, so that a kubelet can go on reading the first.
"""

from __future__ import annotations

import msgspec

from engine.api._base import Struct
from engine.api.duration import Duration

GROUP_VERSION = "kubengine.dev/v1alpha1"


class PreemptionSection(Struct, forbid_unknown_fields=True):
    """`policy`: kubelet, priority or minimal. `time_limit` bounds the search of `minimal`."""

    policy: str = "kubelet"
    time_limit: Duration = Duration(0.1)


class ContainerGCSection(Struct, forbid_unknown_fields=True):
    """The kubelet's container GC flags; negative means no limit."""

    min_age: Duration = Duration(0)
    max_per_pod_container: int = 1
    max_containers: int = -1


class ImagesSection(Struct, forbid_unknown_fields=True):
    pass


class EvictionSection(Struct, forbid_unknown_fields=True):
    pass


class DevicesSection(Struct, forbid_unknown_fields=True):
    pass


class ProbesSection(Struct, forbid_unknown_fields=True):
    pass


class CgroupsSection(Struct, forbid_unknown_fields=True):
    pass


class ServerSection(Struct, forbid_unknown_fields=True):
    """`read_only_address`: where `readOnlyPort` listens, whatever KubeletConfiguration's `address` says.

    The port has no authentication, so only this field opens it beyond loopback.
    """

    read_only_address: str = "127.0.0.1"


class KubengineConfiguration(Struct, forbid_unknown_fields=True):
    api_version: str = GROUP_VERSION
    kind: str = "KubengineConfiguration"
    node_labels: dict[str, str] | None = None
    preemption: PreemptionSection = msgspec.field(default_factory=PreemptionSection)
    container_gc: ContainerGCSection = msgspec.field(default_factory=ContainerGCSection)
    images: ImagesSection = msgspec.field(default_factory=ImagesSection)
    eviction: EvictionSection = msgspec.field(default_factory=EvictionSection)
    devices: DevicesSection = msgspec.field(default_factory=DevicesSection)
    probes: ProbesSection = msgspec.field(default_factory=ProbesSection)
    cgroups: CgroupsSection = msgspec.field(default_factory=CgroupsSection)
    server: ServerSection = msgspec.field(default_factory=ServerSection)
