"""KubengineConfiguration (`kubengine.dev/v1alpha1`): features beyond the kubelet, off by default.

It has one section per package. It is a separate document, in the file of the KubeletConfiguration or in
another file, so that a kubelet can still read the first document.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.api.duration import Duration
from engine.api.quantity import Quantity
from engine.api.struct import Struct

GROUP_VERSION = "kubengine.dev/v1alpha1"


class AdmissionSection(Struct, forbid_unknown_fields=True):
    """Configure admission.

    `patience` is how long a pod that fits waits for terminating pods that still hold its resources, beyond
    the longest of their grace periods, before it is rejected. It also waits this long for an error of the
    machine (a full disk) to pass.
    """

    patience: Duration = Duration(60)


class PreemptionSection(Struct, forbid_unknown_fields=True):
    """Configure preemption: `policy` is kubelet, priority or minimal, and `time_limit` bounds the search of
    `minimal`.
    """

    policy: str = "kubelet"
    time_limit: Duration = Duration(0.1)


class ContainerGCSection(Struct, forbid_unknown_fields=True):
    """Configure container GC as the kubelet's flags do; a negative number means no limit."""

    min_age: Duration = Duration(0)
    max_per_pod_container: int = 1
    max_containers: int = -1


class ImagesSection(Struct, forbid_unknown_fields=True):
    """Configure image GC beyond the kubelet's settings.

    `order`: `lru` (the kubelet's), `largest-first`, `size-aware` (most bytes times days of disuse), or
    `layers` (of equally old images first the one whose removal frees the most bytes in layers of its own).
    `accounting`: `reported` sums image sizes as the kubelet does; `measured` reads the file system after each
    removal, so that layers shared with other images do not count as freed.

    `keep_records` stores on disk when images were first seen and last used, so that images keep their ages
    after a restart. `leases` protects the image of a pod that is being started. `protect_sandbox_image`
    protects the pause image: `sandbox_image`, or the one that the runtime reports. Inode thresholds are
    percentages in use; 0 is off. `remove_timeout` bounds one removal. Images with a name that matches a
    pattern in `keep` are never collected. `prepull` lists images that are pulled when they are missing and
    never collected, at most `prepull_at_once` at the same time.
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
    """Configure eviction beyond the kubelet's settings.

    `recheck_before_evict` measures again right before a pod is evicted, and skips the eviction if no
    threshold is still met. `memory_signal`: `working-set` (the kubelet's) or `memavailable`, the kernel's
    own estimate, which treats reclaimable page cache as available. `notifications` wakes the manager when the
    kernel reports memory pressure instead of at the next interval, regardless of `kernelMemcgNotification`.
    `interval` is the time between two checks.

    `reclaim_settle`: after images or containers were removed to free disk space, how long at most to watch
    the free bytes until they stop growing, before a pod is evicted; 0 does not wait. `reclaim_everywhere`:
    disk pressure removes dead containers and unused images on any file system.

    `memory_stall`, under cgroup v2: the percentage of time in which all pods may wait for memory; if it is
    exceeded for longer than `memory_stall_for`, a pod that causes the stall is evicted. 0 is off.

    `cpu_stall` and `io_stall`: the percentage of time beyond which tasks of pods wait for the CPU (some of
    them) or for disks (all of them). If it is exceeded at every check for `stall_for`, the node has the
    condition `CPUPressure` or `IOPressure`. 0 disables the condition.

    `count_swap`, under cgroup v2: swap that pods may still use counts as available memory, and swap that they
    use as memory in use.

    `project_quotas`: which pods' emptyDir volumes have a project quota, so that the kernel counts them:
    `none`, `user-namespaces` (pods with `hostUsers: false`, as the kubelet's gate does) or `all`.
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
    """Configure device plugins beyond the kubelet's settings.

    `admission_retry`: how long a pod waits for a plugin that has not reconnected since the agent or the
    plugin restarted, before the pod is rejected; also how long it waits for the devices of terminating pods,
    beyond the longest of their grace periods. 0 rejects at once if a plugin is not connected.
    `release_init_surplus` returns devices that only init containers used to the pool once the app containers
    run. `one_allocate_per_pod` makes one Allocate call per plugin and pod instead of one per container.
    """

    admission_retry: Duration = Duration(40)
    release_init_surplus: bool = False
    one_allocate_per_pod: bool = False


class ProbesSection(Struct, forbid_unknown_fields=True):
    """Configure probes.

    `max_connections` is the number of open sockets of the native loop, at most half of the process's
    descriptors; further probes wait. `library_concurrency` is the number of concurrent HTTPS and by-name
    probes, and of concurrent commands in containers. `metrics` is the granularity of `/metrics/probes`:
    `container` (the kubelet's), `pod` (summed over a pod's containers) or `none`.

    `liveness_kills_per_owner` and `liveness_kills_per_node` are how many containers liveness probes may kill
    within `liveness_kills_within`, among the pods of one controller and of the node; 0 means no limit. With
    either limit, a probe that the node itself ran late never kills a container.

    `network` says whether probes open their sockets in the network of the `node` (as the kubelet does) or of
    the `pod`, for pods without the annotation. `start_period` is the period of startup and readiness probes
    until their first success, except exec probes; 0 means the normal period.
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
    """Configure the cgroups of pods beyond the kubelet's settings.

    `cpu_weight` is the formula of cgroup v2 weights: `linear`, `logarithmic`, or `auto`, which depends on the
    version of the OCI runtime (`oci_runtime`: its path; by default runc, else crun, on the PATH).
    `reconcile_sample` is the number of pod groups that are read again each minute. With the MemoryQoS gate,
    `tiered_memory_protection` sets memory.min only for Guaranteed pods, and memory.low for Burstable ones.
    With `cpu_ceiling`, cgroup v2 limits the CPU of all pods together (cpu.max) to the allocatable CPU.
    `pod_annotations` lists the enabled pod annotations for cgroups, by their names without `kubengine.dev/`,
    from the list in `engine.cgroups.formulas.pod_annotations`.

    With `best_effort_idle`, BestEffort pods run only while the CPU is otherwise idle. `best_effort_ceiling`
    is the percentage of the machine's CPU up to which BestEffort pods may fill the use of all workloads;
    their own ceiling shrinks with the use of others, down to `best_effort_floor` percent. 0 means no ceiling.
    """

    cpu_weight: Literal["auto", "linear", "logarithmic"] = "auto"
    oci_runtime: str = ""
    reconcile_sample: int = 32
    tiered_memory_protection: bool = False
    cpu_ceiling: bool = False
    pod_annotations: list[str] = msgspec.field(default_factory=list)
    best_effort_idle: bool = False
    best_effort_ceiling: int = 0
    best_effort_floor: int = 5


class CpuPool(Struct, forbid_unknown_fields=True):
    """Reserve CPUs for the Burstable pods in `namespaces` (any, if empty) that have all `labels`.

    The pool has as many CPUs as these pods request together, but at least `minCPUs` and, unless that is 0, at
    most `maxCPUs`. `sized_by` is `requests`, or `use`: as many CPUs as the pods have used lately, and a fifth
    of the pool to spare.
    """

    name: str
    namespaces: list[str] = msgspec.field(default_factory=list)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    min_cpus: int = msgspec.field(name="minCPUs", default=0)
    max_cpus: int = msgspec.field(name="maxCPUs", default=0)
    sized_by: Literal["requests", "use"] = "requests"


class CpusSection(Struct, forbid_unknown_fields=True):
    """Divide the CPUs that are not exclusive under the static CPU manager; each field is off by default.

    A pod belongs to the first of the `pools` that takes it; other pods do not run on the pool's CPUs. With
    `keep_together`, each other Burstable pod runs on one last-level cache or NUMA node while its requests fit
    there. With `respect_isolated`, containers without exclusive CPUs stay off the CPUs of the kernel's
    `isolcpus`. `system_cgroups` lists cgroups, such as `/system.slice`, whose processes stay off exclusive
    CPUs.
    """

    pools: list[CpuPool] = msgspec.field(default_factory=list)
    keep_together: Literal["", "cache", "node"] = ""
    respect_isolated: bool = False
    system_cgroups: list[str] = msgspec.field(default_factory=list)


class ServerSection(Struct, forbid_unknown_fields=True):
    """Name the addresses of the node's ports.

    `read_only_address` is the address of `readOnlyPort`, regardless of KubeletConfiguration's `address`. That
    port has no authentication, so only this field opens it beyond loopback. `port_address` is the address of
    the node's own port; by default KubeletConfiguration's `address` in a cluster, whose API server must reach
    it, and 127.0.0.1 without one.
    """

    read_only_address: str = "127.0.0.1"
    port_address: str = ""


class DecisionsSection(Struct, forbid_unknown_fields=True):
    """Name the `file` to which decisions are appended as JSON lines; none if empty.

    A file that would grow beyond `max_size` is renamed to `file.1` and so on; `max_files` bounds the number
    of files, including the current one.
    """

    file: str = ""
    max_size: Quantity = Quantity.parse("10Mi")
    max_files: int = 3


class RecordSection(Struct, forbid_unknown_fields=True):
    """Name the `directory` where decisions and events are kept for `kubengine why`; nowhere if empty.

    The oldest are removed beyond `max_size` and after `max_age`.
    """

    directory: str = ""
    max_size: Quantity = Quantity.parse("64Mi")
    max_age: Duration = Duration(7 * 24 * 3600)


class KubengineConfiguration(Struct, forbid_unknown_fields=True):
    """Hold the settings that a kubelet does not have.

    `node_labels` are labels of the node. `runtime_classes` are runtime handlers by class, for a node without
    an API server; a handler that the runtime lists needs no entry.
    """

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
    cpus: CpusSection = msgspec.field(default_factory=CpusSection)
    server: ServerSection = msgspec.field(default_factory=ServerSection)
    decisions: DecisionsSection = msgspec.field(default_factory=DecisionsSection)
    record: RecordSection = msgspec.field(default_factory=RecordSection)
