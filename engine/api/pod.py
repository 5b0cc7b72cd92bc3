"""The Pod as users write it: metadata and spec. `engine.api.status` has the status.

Names, meanings and the order of fields are those of the Kubernetes core v1 API. Volume sources that no node
supports are kept as plain dicts, so that they can be named when they are refused.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.quantity import Quantity
from engine.api.references import (
    ClusterTrustBundleProjection,
    ConfigMapVolume,
    FCVolume,
    FileKeySelector,
    ISCSIVolume,
    KeySelector,
    NFSVolume,
    ObjectProjection,
    PersistentVolumeClaimVolume,
    PodCertificateProjection,
    SecretVolume,
    ServiceAccountTokenProjection,
    WholeObject,
)
from engine.api.scheduling import (
    Affinity,
    PodSchedulingGate,
    PodSchedulingGroup,
    Toleration,
    TopologySpreadConstraint,
)
from engine.api.status import PodStatus
from engine.api.struct import Int32, Struct, written

ResourceList = dict[str, Quantity]
IntOrString = int | str


class ResourceClaimRef(Struct):
    name: str
    request: str = ""


class PodResourceClaim(Struct):
    """Name a claim for containers to use: an existing one, or one that the control plane makes from a
    template.
    """

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class ResourceRequirements(Struct):
    requests: ResourceList | None = None
    limits: ResourceList | None = None
    claims: list[ResourceClaimRef] | None = None


class ObjectFieldSelector(Struct):
    field_path: str
    api_version: str = ""


class ResourceFieldSelector(Struct):
    resource: str
    container_name: str = ""
    divisor: Quantity | None = None


class EnvVarSource(Struct):
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    file_key_ref: FileKeySelector | None = None


class EnvVar(Struct):
    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class EnvFromSource(Struct):
    prefix: str = ""
    config_map_ref: WholeObject | None = None
    secret_ref: WholeObject | None = None


class ContainerPort(Struct, kw_only=True):
    name: str = ""
    host_port: Int32 = 0
    container_port: Int32
    protocol: str = written("TCP")
    host_ip: str = ""


class VolumeMount(Struct):
    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
    recursive_read_only: str | None = None
    mount_propagation: str | None = None


class VolumeDevice(Struct):
    name: str
    device_path: str


class ExecAction(Struct):
    command: list[str] | None = None


class HTTPHeader(Struct):
    name: str
    value: str = written("")


class HTTPGetAction(Struct, kw_only=True):
    path: str = ""
    port: IntOrString
    host: str = ""
    scheme: str = written("HTTP")
    http_headers: list[HTTPHeader] | None = None


class TCPSocketAction(Struct):
    port: IntOrString
    host: str = ""


class GRPCAction(Struct):
    port: Int32
    service: str | None = None


class SleepAction(Struct):
    seconds: int = written(0)


class Probe(Struct):
    """Describe a liveness, readiness or startup probe; times are seconds, defaults those of Kubernetes."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: Int32 = 0
    timeout_seconds: Int32 = written(1)
    period_seconds: Int32 = written(10)
    success_threshold: Int32 = written(1)
    failure_threshold: Int32 = written(3)
    termination_grace_period_seconds: int | None = None


class LifecycleHandler(Struct):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(Struct):
    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str | None = None


class Capabilities(Struct):
    add: list[str] | None = None
    drop: list[str] | None = None


class SELinuxOptions(Struct):
    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class WindowsOptions(Struct):
    """Hold settings for Windows nodes, which are read only to refuse combinations that a kubelet refuses."""

    gmsa_credential_spec_name: str | None = None
    gmsa_credential_spec: str | None = None
    run_as_user_name: str | None = None
    host_process: bool | None = None


class SecurityProfile(Struct):
    """Name a seccomp or AppArmor profile."""

    type: str
    localhost_profile: str | None = None


class SecurityContext(Struct):
    capabilities: Capabilities | None = None
    privileged: bool | None = None
    se_linux_options: SELinuxOptions | None = None
    windows_options: WindowsOptions | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    read_only_root_filesystem: bool | None = None
    allow_privilege_escalation: bool | None = None
    proc_mount: str | None = None
    seccomp_profile: SecurityProfile | None = None
    app_armor_profile: SecurityProfile | None = None


class Sysctl(Struct):
    name: str
    value: str = written("")


class PodSecurityContext(Struct):
    se_linux_options: SELinuxOptions | None = None
    windows_options: WindowsOptions | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: list[int] | None = None
    supplemental_groups_policy: str | None = None
    fs_group: int | None = None
    fs_group_change_policy: str | None = None
    sysctls: list[Sysctl] | None = None
    seccomp_profile: SecurityProfile | None = None
    app_armor_profile: SecurityProfile | None = None
    se_linux_change_policy: str | None = None


class ContainerResizePolicy(Struct):
    resource_name: str
    restart_policy: str


class ContainerRestartRuleOnExitCodes(Struct):
    """Select exit codes: `operator` is In or NotIn."""

    operator: str
    values: list[Int32] | None = None


class ContainerRestartRule(Struct):
    """Map exit codes to an `action`: Restart or RestartAllContainers."""

    action: str
    exit_codes: ContainerRestartRuleOnExitCodes | None = None


class Container(Struct):
    """Describe a container, init container or sidecar (an init container with `restart_policy` Always)."""

    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str = ""
    ports: list[ContainerPort] | None = None
    env: list[EnvVar] | None = None
    env_from: list[EnvFromSource] | None = None
    resources: ResourceRequirements | None = None
    resize_policy: list[ContainerResizePolicy] | None = None
    restart_policy: str | None = None
    restart_policy_rules: list[ContainerRestartRule] | None = None
    volume_mounts: list[VolumeMount] | None = None
    volume_devices: list[VolumeDevice] | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""
    image_pull_policy: str = ""
    security_context: SecurityContext | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False

    @property
    def requests(self) -> ResourceList:
        return (self.resources and self.resources.requests) or {}

    @property
    def limits(self) -> ResourceList:
        return (self.resources and self.resources.limits) or {}

    @property
    def is_sidecar(self) -> bool:
        """Return whether an init container is a sidecar; other containers never are."""
        return self.restart_policy == "Always"


class EphemeralContainer(Container):
    """Describe a container that is added to a running pod: it starts once, and does not affect the pod's
    phase.

    It has no ports, resources, probes and hooks.
    """

    target_container_name: str = ""


class HostPathVolume(Struct):
    path: str
    type: str = written("")


class EmptyDirVolume(Struct):
    medium: str = ""
    size_limit: Quantity | None = None


class DownwardAPIFile(Struct):
    path: str
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: Int32 | None = None


class DownwardAPIVolume(Struct):
    items: list[DownwardAPIFile] | None = None
    default_mode: Int32 | None = None


class VolumeProjection(Struct):
    downward_api: DownwardAPIVolume | None = None
    config_map: ObjectProjection | None = None
    secret: ObjectProjection | None = None
    service_account_token: ServiceAccountTokenProjection | None = None
    cluster_trust_bundle: ClusterTrustBundleProjection | None = None
    pod_certificate: PodCertificateProjection | None = None


class ProjectedVolume(Struct):
    sources: list[VolumeProjection] | None = written(None)
    default_mode: Int32 | None = None


class ImageVolume(Struct):
    reference: str = ""
    pull_policy: str = ""


class LocalObjectReference(Struct):
    name: str = ""


class CSIVolume(Struct):
    """Describe a volume that a driver creates for one pod."""

    driver: str = ""
    read_only: bool | None = None
    fs_type: str | None = None
    volume_attributes: dict[str, str] | None = None
    node_publish_secret_ref: LocalObjectReference | None = None


class Volume(Struct):
    """Hold a volume with exactly one source; sources that are plain dicts need a driver."""

    name: str
    host_path: HostPathVolume | None = None
    empty_dir: EmptyDirVolume | None = None
    downward_api: DownwardAPIVolume | None = None
    projected: ProjectedVolume | None = None
    image: ImageVolume | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    persistent_volume_claim: PersistentVolumeClaimVolume | None = None
    ephemeral: dict[str, Any] | None = None
    csi: CSIVolume | None = None
    nfs: NFSVolume | None = None
    iscsi: ISCSIVolume | None = None
    fc: FCVolume | None = None
    flex_volume: dict[str, Any] | None = None
    git_repo: dict[str, Any] | None = None
    glusterfs: dict[str, Any] | None = None
    rbd: dict[str, Any] | None = None
    cephfs: dict[str, Any] | None = None
    cinder: dict[str, Any] | None = None
    portworx_volume: dict[str, Any] | None = None
    aws_elastic_block_store: dict[str, Any] | None = None
    gce_persistent_disk: dict[str, Any] | None = None
    azure_disk: dict[str, Any] | None = None
    azure_file: dict[str, Any] | None = None
    vsphere_volume: dict[str, Any] | None = None
    flocker: dict[str, Any] | None = None
    photon_persistent_disk: dict[str, Any] | None = None
    quobyte: dict[str, Any] | None = None
    scale_io: dict[str, Any] | None = msgspec.field(default=None, name="scaleIO")
    storageos: dict[str, Any] | None = None


class PodOS(Struct):
    name: str


class HostAlias(Struct):
    ip: str
    hostnames: list[str] | None = None


class PodDNSConfigOption(Struct):
    name: str = ""
    value: str | None = None


class PodDNSConfig(Struct):
    nameservers: list[str] | None = None
    searches: list[str] | None = None
    options: list[PodDNSConfigOption] | None = None


class PodReadinessGate(Struct):
    condition_type: str


class PodSpec(Struct):
    containers: list[Container] = msgspec.field(default_factory=list)
    init_containers: list[Container] | None = None
    ephemeral_containers: list[EphemeralContainer] | None = None
    volumes: list[Volume] | None = None
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    dns_policy: str = ""
    dns_config: PodDNSConfig | None = None
    node_selector: dict[str, str] | None = None
    service_account_name: str = ""
    service_account: str = ""
    automount_service_account_token: bool | None = None
    node_name: str = ""
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    host_users: bool | None = None
    share_process_namespace: bool | None = None
    security_context: PodSecurityContext | None = None
    image_pull_secrets: list[LocalObjectReference] | None = None
    hostname: str = ""
    hostname_override: str | None = None
    subdomain: str = ""
    set_hostname_as_fqdn: bool | None = None
    affinity: Affinity | None = None
    scheduler_name: str = ""
    tolerations: list[Toleration] | None = None
    host_aliases: list[HostAlias] | None = None
    priority_class_name: str = ""
    priority: Int32 | None = None
    preemption_policy: str | None = None
    readiness_gates: list[PodReadinessGate] | None = None
    runtime_class_name: str | None = None
    enable_service_links: bool | None = None
    overhead: ResourceList | None = None
    topology_spread_constraints: list[TopologySpreadConstraint] | None = None
    os: PodOS | None = None
    scheduling_gates: list[PodSchedulingGate] | None = None
    scheduling_group: PodSchedulingGroup | None = None
    resource_claims: list[PodResourceClaim] | None = None
    resources: ResourceRequirements | None = None


class Pod(Struct):
    """Represent a core/v1 Pod."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    if TYPE_CHECKING:

        @property
        def uid(self) -> str: ...

    else:
        uid = property(attrgetter("metadata.uid"))  # read dozens of times for each sync of a pod

    @property
    def full_name(self) -> str:
        """Return `namespace/name`, as in events and errors."""
        return f"{self.metadata.namespace or 'default'}/{self.metadata.name}"

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def init_containers(self) -> list[Container]:
        return self.spec.init_containers or []

    @property
    def all_containers(self) -> list[Container]:
        """Return all containers, init containers first, in the order in which they start."""
        return [*(self.spec.init_containers or ()), *self.spec.containers]

    @property
    def ephemeral_containers(self) -> list[EphemeralContainer]:
        return self.spec.ephemeral_containers or []

    @property
    def every_container(self) -> list[Container]:
        """Return every container that may ever run in the pod, ephemeral containers last."""
        spec = self.spec
        return [*(spec.init_containers or ()), *spec.containers, *(spec.ephemeral_containers or ())]
