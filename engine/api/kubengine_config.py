"""KubengineConfiguration (`kubengine.dev/v1alpha1`): features beyond the kubelet, off by default.

It has one section per package. It is a document of its own, in the file of the KubeletConfiguration or in
another, so that a kubelet can still read the first.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.api.duration import Duration
from engine.api.quantity import Quantity
from engine.api.struct import Struct

GROUP_VERSION = "kubengine.dev/v1alpha1"


class AdmissionSection(Struct, forbid_unknown_fields=True):
    """`patience`: how long a pod that fits waits for pods that are to end and still hold what it needs,
    beyond the longest of their grace periods, before it is refused; and how long for a machine that keeps
    it out (a full disk)."""

    patience: Duration = Duration(60)


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
    """Image GC beyond the kubelet's.

    `order`: `lru` (the kubelet's), `largest-first`, or `size-aware` (most bytes times days of disuse).
    `accounting`: `reported` sums image sizes as the kubelet does; `measured` asks the file system after
    each removal, so that layers shared with other images are not counted as freed.
    `keep_records` writes when images were first seen and last used to disk, so that a restart doesn't
    make every image new. `leases` keeps an image whose pod is being started. `protect_sandbox_image`
    keeps the pause image: `sandbox_image`, or what the runtime says it uses. Inode thresholds are
    percentages in use; 0 is off. `remove_timeout` bounds one removal. Images with a name that matches one
    of the patterns in `keep` are never collected.

    `order: layers`: of equally old images the one first whose removal frees most, layers that others have not
    counted. `prepull`: images that are pulled when they are missing and never collected, `prepull_at_once` at
    once at most.
    """

    order: str = "lru"
    accounting: str = "reported"
    keep_records: bool = False
    leases: bool = False
    protect_sandbox_image: bool = False
    sandbox_image: str = ""
    inode_high_threshold_percent: int = 0
    inode_low_threshold_percent: int = 0
    remove_timeout: Duration = Duration(120)
    keep: list[str] = msgspec.field(default_factory=list)
    prepull: list[str] = msgspec.field(default_factory=list)
    prepull_at_once: int = 1


class EvictionSection(Struct, forbid_unknown_fields=True):
    """Eviction beyond the kubelet's.

    `recheck_before_evict` measures again right before a pod is ended and lets it live if no threshold is
    met any more. `memory_signal`: `working-set` (the kubelet's) or `memavailable`, the kernel's own
    estimate, which doesn't count page cache that can be reclaimed. `notifications` wakes the manager
    when the kernel reports memory pressure instead of at the next interval, whatever
    `kernelMemcgNotification` says. `interval` is the time between two looks.

    `reclaim_settle`: after images or containers were removed for a disk, how long at most the free bytes
    are watched until they grow no more, before a pod is ended; 0 doesn't wait. `reclaim_everywhere`: disk
    pressure removes dead containers and unused images whatever file system they lie on.

    `memory_stall`, under cgroup v2: the percentage of time in which all pods may wait for memory; beyond it
    for longer than `memory_stall_for` a pod is ended that makes them wait. 0 is off.

    `cpu_stall` and `io_stall`: the percentage of the time beyond which pods' tasks wait for the CPU (some of
    them), or for disks (all of them), at every look for `stall_for`: then the node has the condition
    `CPUPressure` or `IOPressure`. 0: no such condition.

    `count_swap`, under cgroup v2: what pods may still swap out counts as available memory, and what they have
    swapped out as memory that they use.

    `project_quotas`: whose emptyDirs the kernel counts by a project quota of their own instead of a walk:
    `none`, `user-namespaces` (of pods with `hostUsers: false`, as the kubelet's gate has it) or `all`.
    """

    recheck_before_evict: bool = False
    memory_signal: str = "working-set"
    notifications: bool = True
    interval: Duration = Duration(10)
    reclaim_settle: Duration = Duration(0)
    reclaim_everywhere: bool = False
    memory_stall: int = 0
    memory_stall_for: Duration = Duration(30)
    cpu_stall: int = 0
    io_stall: int = 0
    stall_for: Duration = Duration(60)
    count_swap: bool = False
    project_quotas: str = "none"


class DevicesSection(Struct, forbid_unknown_fields=True):
    """Devices beyond the kubelet's.

    `admission_retry`: how long a pod waits for a plugin that has not come back with its devices since the
    agent or the plugin restarted, before it is refused; and how long, beyond the longest of their grace
    periods, for the devices of pods that are to end. 0 refuses at once where a plugin is away.
    `release_init_surplus` returns devices
    that only init containers used to the pool once the app containers run. `one_allocate_per_pod` makes
    one Allocate call per plugin and pod instead of one per container.
    """

    admission_retry: Duration = Duration(40)
    release_init_surplus: bool = False
    one_allocate_per_pod: bool = False


class ProbesSection(Struct, forbid_unknown_fields=True):
    """`max_connections`: sockets that the native loop has open at once, at most half of the process's
    descriptors; what is due beyond it waits.

    `library_concurrency`: HTTPS and by-name probes that run at once, and as many commands in containers.
    `metrics`: whose samples `/metrics/probes` has: `container` (the kubelet's), `pod` (summed over a
    pod's containers) or `none`.

    `liveness_kills_per_owner` and `liveness_kills_per_node`: how many containers may be ended for their
    liveness probes within `liveness_kills_within`, of the pods of one controller and of all; 0: any number.
    With either of them nothing is ended for a probe that the node itself ran late.

    `network`: where probes open their sockets, in the network of the `node` (the kubelet's way) or of the
    `pod`, for pods whose annotation doesn't say. `start_period`: the period of startup and readiness probes
    until they have succeeded once, but for those that run commands; 0: no other than later.
    """

    max_connections: int = 1024
    library_concurrency: int = 32
    metrics: str = "container"
    liveness_kills_per_owner: int = 0
    liveness_kills_per_node: int = 0
    liveness_kills_within: Duration = Duration(600)
    network: str = "node"
    start_period: Duration = Duration(0)


class CgroupsSection(Struct, forbid_unknown_fields=True):
    """`cpu_weight`: which formula gives cgroup v2 weights: `linear`, `logarithmic`, or `auto`, which
    asks the OCI runtime's version (`oci_runtime`: its path; by default runc, else crun, on the PATH).
    `reconcile_sample`: how many pod groups are re-read each minute. `tiered_memory_protection`: with
    the MemoryQoS gate, memory.min for Guaranteed pods only and memory.low for Burstable ones.
    `cpu_ceiling`: under cgroup v2, all pods together get no more CPU than is allocatable.
    `pod_annotations`: which annotations of pods count for their cgroups, of those that
    `engine.cgroups.formulas.pod_annotations` lists, by their names without `kubengine.dev/`.

    `best_effort_idle`: BestEffort pods run while nobody else wants the CPU. `best_effort_ceiling`: the
    percentage of the machine's CPU that may be in use altogether with them; what others use comes off their
    ceiling, down to `best_effort_floor` percent. 0: no ceiling."""

    cpu_weight: Literal["auto", "linear", "logarithmic"] = "auto"
    oci_runtime: str = ""
    reconcile_sample: int = 32
    tiered_memory_protection: bool = False
    cpu_ceiling: bool = False
    pod_annotations: list[str] = msgspec.field(default_factory=list)
    best_effort_idle: bool = False
    best_effort_ceiling: int = 0
    best_effort_floor: int = 5


class ServerSection(Struct, forbid_unknown_fields=True):
    """`read_only_address`: where `readOnlyPort` listens, whatever KubeletConfiguration's `address` says.

    The port has no authentication, so only this field opens it beyond loopback.

    `port_address`: where the node's own port listens; by default on KubeletConfiguration's `address` in a
    cluster, whose API server must reach it, and on 127.0.0.1 without one.
    """

    read_only_address: str = "127.0.0.1"
    port_address: str = ""


class DecisionsSection(Struct, forbid_unknown_fields=True):
    """`file`: where decisions are appended as JSON lines, none if empty. One that would grow beyond
    `max_size` is renamed to `file.1` and so on; `max_files` bounds how many there are, the current one
    included."""

    file: str = ""
    max_size: Quantity = Quantity.parse("10Mi")
    max_files: int = 3


class KubengineConfiguration(Struct, forbid_unknown_fields=True):
    """`node_labels`: the node's. `runtime_classes`: handler of the runtime by class, of a node without an API
    server; a handler that the runtime lists needs none."""

    api_version: str = GROUP_VERSION
    kind: str = "KubengineConfiguration"
    node_labels: dict[str, str] | None = None
    runtime_classes: dict[str, str] | None = None
    admission: AdmissionSection = msgspec.field(default_factory=AdmissionSection)
    preemption: PreemptionSection = msgspec.field(default_factory=PreemptionSection)
    container_gc: ContainerGCSection = msgspec.field(default_factory=ContainerGCSection)
    images: ImagesSection = msgspec.field(default_factory=ImagesSection)
    eviction: EvictionSection = msgspec.field(default_factory=EvictionSection)
    devices: DevicesSection = msgspec.field(default_factory=DevicesSection)
    probes: ProbesSection = msgspec.field(default_factory=ProbesSection)
    cgroups: CgroupsSection = msgspec.field(default_factory=CgroupsSection)
    server: ServerSection = msgspec.field(default_factory=ServerSection)
    decisions: DecisionsSection = msgspec.field(default_factory=DecisionsSection)
