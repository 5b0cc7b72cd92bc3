"""Lists the fields of a pod in the kubelet's internal structures, in the order of their printed form.

Each entry is one structure: its name, then its fields as `Name:type`, or `Name` alone for a string.
Continuation lines are indented. A leading `.` stands for `core.`. Types that a manifest cannot contain are
used but not listed. Source: Kubernetes v1.36 (the internal core API). Other minor versions have other fields,
and so compute other uids.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_CORE = re.compile(r"([\]*:])\.(?=[A-Z])")

STRUCTURES = """
.Pod TypeMeta:v1.TypeMeta ObjectMeta:v1.ObjectMeta Spec:.PodSpec Status:.PodStatus
v1.TypeMeta Kind APIVersion
v1.ObjectMeta Name GenerateName Namespace SelfLink UID:types.UID ResourceVersion Generation:int64
  CreationTimestamp:v1.Time DeletionTimestamp:*v1.Time DeletionGracePeriodSeconds:*int64
  Labels:map[string]string Annotations:map[string]string OwnerReferences:[]v1.OwnerReference
  Finalizers:[]string ManagedFields:[]v1.ManagedFieldsEntry
.PodSpec Volumes:[].Volume InitContainers:[].Container Containers:[].Container
  EphemeralContainers:[].EphemeralContainer RestartPolicy:.RestartPolicy
  TerminationGracePeriodSeconds:*int64 ActiveDeadlineSeconds:*int64 DNSPolicy:.DNSPolicy
  NodeSelector:map[string]string ServiceAccountName AutomountServiceAccountToken:*bool NodeName
  SecurityContext:*.PodSecurityContext ImagePullSecrets:[].LocalObjectReference Hostname Subdomain
  SetHostnameAsFQDN:*bool Affinity:*.Affinity SchedulerName Tolerations:[].Toleration
  HostAliases:[].HostAlias PriorityClassName Priority:*int32 PreemptionPolicy:*.PreemptionPolicy
  DNSConfig:*.PodDNSConfig ReadinessGates:[].PodReadinessGate RuntimeClassName:*string
  Overhead:.ResourceList EnableServiceLinks:*bool TopologySpreadConstraints:[].TopologySpreadConstraint
  OS:*.PodOS SchedulingGates:[].PodSchedulingGate ResourceClaims:[].PodResourceClaim
  Resources:*.ResourceRequirements HostnameOverride:*string SchedulingGroup:*.PodSchedulingGroup
.Volume Name VolumeSource:.VolumeSource
.VolumeSource HostPath:*.HostPathVolumeSource EmptyDir:*.EmptyDirVolumeSource
  GCEPersistentDisk:*.GCEPersistentDiskVolumeSource AWSElasticBlockStore:*.AWSElasticBlockStoreVolumeSource
  GitRepo:*.GitRepoVolumeSource Secret:*.SecretVolumeSource NFS:*.NFSVolumeSource ISCSI:*.ISCSIVolumeSource
  Glusterfs:*.GlusterfsVolumeSource PersistentVolumeClaim:*.PersistentVolumeClaimVolumeSource
  RBD:*.RBDVolumeSource Quobyte:*.QuobyteVolumeSource FlexVolume:*.FlexVolumeSource
  Cinder:*.CinderVolumeSource CephFS:*.CephFSVolumeSource Flocker:*.FlockerVolumeSource
  DownwardAPI:*.DownwardAPIVolumeSource FC:*.FCVolumeSource AzureFile:*.AzureFileVolumeSource
  ConfigMap:*.ConfigMapVolumeSource VsphereVolume:*.VsphereVirtualDiskVolumeSource
  AzureDisk:*.AzureDiskVolumeSource PhotonPersistentDisk:*.PhotonPersistentDiskVolumeSource
  Projected:*.ProjectedVolumeSource PortworxVolume:*.PortworxVolumeSource ScaleIO:*.ScaleIOVolumeSource
  StorageOS:*.StorageOSVolumeSource CSI:*.CSIVolumeSource Ephemeral:*.EphemeralVolumeSource
  Image:*.ImageVolumeSource
.HostPathVolumeSource Path Type:*.HostPathType
.EmptyDirVolumeSource Medium:.StorageMedium SizeLimit:*resource.Quantity
.DownwardAPIVolumeSource Items:[].DownwardAPIVolumeFile DefaultMode:*int32
.DownwardAPIVolumeFile Path FieldRef:*.ObjectFieldSelector ResourceFieldRef:*.ResourceFieldSelector
  Mode:*int32
.ObjectFieldSelector APIVersion FieldPath
.ResourceFieldSelector ContainerName Resource Divisor:resource.Quantity
.ProjectedVolumeSource Sources:[].VolumeProjection DefaultMode:*int32
.VolumeProjection Secret:*.SecretProjection DownwardAPI:*.DownwardAPIProjection
  ConfigMap:*.ConfigMapProjection ServiceAccountToken:*.ServiceAccountTokenProjection
  ClusterTrustBundle:*.ClusterTrustBundleProjection PodCertificate:*.PodCertificateProjection
.DownwardAPIProjection Items:[].DownwardAPIVolumeFile
.ImageVolumeSource Reference PullPolicy:.PullPolicy
.Container Name Image Command:[]string Args:[]string WorkingDir Ports:[].ContainerPort
  EnvFrom:[].EnvFromSource Env:[].EnvVar Resources:.ResourceRequirements
  ResizePolicy:[].ContainerResizePolicy RestartPolicy:*.ContainerRestartPolicy
  RestartPolicyRules:[].ContainerRestartRule VolumeMounts:[].VolumeMount VolumeDevices:[].VolumeDevice
  LivenessProbe:*.Probe ReadinessProbe:*.Probe StartupProbe:*.Probe Lifecycle:*.Lifecycle
  TerminationMessagePath TerminationMessagePolicy:.TerminationMessagePolicy ImagePullPolicy:.PullPolicy
  SecurityContext:*.SecurityContext Stdin:bool StdinOnce:bool TTY:bool
.ContainerPort Name HostPort:int32 ContainerPort:int32 Protocol:.Protocol HostIP
.EnvFromSource Prefix ConfigMapRef:*.ConfigMapEnvSource SecretRef:*.SecretEnvSource
.EnvVar Name Value ValueFrom:*.EnvVarSource
.EnvVarSource FieldRef:*.ObjectFieldSelector ResourceFieldRef:*.ResourceFieldSelector
  ConfigMapKeyRef:*.ConfigMapKeySelector SecretKeyRef:*.SecretKeySelector FileKeyRef:*.FileKeySelector
.FileKeySelector VolumeName Path Key Optional:*bool
.ResourceRequirements Limits:.ResourceList Requests:.ResourceList Claims:[].ResourceClaim
.ResourceClaim Name Request
.ContainerResizePolicy ResourceName:.ResourceName RestartPolicy:.ResourceResizeRestartPolicy
.ContainerRestartRule Action:.ContainerRestartRuleAction ExitCodes:*.ContainerRestartRuleOnExitCodes
.ContainerRestartRuleOnExitCodes Operator:.ContainerRestartRuleOnExitCodesOperator Values:[]int32
.VolumeMount Name ReadOnly:bool RecursiveReadOnly:*.RecursiveReadOnlyMode MountPath SubPath
  MountPropagation:*.MountPropagationMode SubPathExpr
.VolumeDevice Name DevicePath
.Probe ProbeHandler:.ProbeHandler InitialDelaySeconds:int32 TimeoutSeconds:int32 PeriodSeconds:int32
  SuccessThreshold:int32 FailureThreshold:int32 TerminationGracePeriodSeconds:*int64
.ProbeHandler Exec:*.ExecAction HTTPGet:*.HTTPGetAction TCPSocket:*.TCPSocketAction GRPC:*.GRPCAction
.ExecAction Command:[]string
.HTTPGetAction Path Port:intstr.IntOrString Host Scheme:.URIScheme HTTPHeaders:[].HTTPHeader
.HTTPHeader Name Value
.TCPSocketAction Port:intstr.IntOrString Host
.GRPCAction Port:int32 Service:*string
.Lifecycle PostStart:*.LifecycleHandler PreStop:*.LifecycleHandler StopSignal:*.Signal
.LifecycleHandler Exec:*.ExecAction HTTPGet:*.HTTPGetAction TCPSocket:*.TCPSocketAction Sleep:*.SleepAction
.SleepAction Seconds:int64
.SecurityContext Capabilities:*.Capabilities Privileged:*bool SELinuxOptions:*.SELinuxOptions
  WindowsOptions:*.WindowsSecurityContextOptions RunAsUser:*int64 RunAsGroup:*int64 RunAsNonRoot:*bool
  ReadOnlyRootFilesystem:*bool AllowPrivilegeEscalation:*bool ProcMount:*.ProcMountType
  SeccompProfile:*.SeccompProfile AppArmorProfile:*.AppArmorProfile
.Capabilities Add:[].Capability Drop:[].Capability
.SELinuxOptions User Role Type Level
.WindowsSecurityContextOptions GMSACredentialSpecName:*string GMSACredentialSpec:*string
  RunAsUserName:*string HostProcess:*bool
.SeccompProfile Type:.SeccompProfileType LocalhostProfile:*string
.AppArmorProfile Type:.AppArmorProfileType LocalhostProfile:*string
.PodSecurityContext HostNetwork:bool HostPID:bool HostIPC:bool ShareProcessNamespace:*bool HostUsers:*bool
  SELinuxOptions:*.SELinuxOptions WindowsOptions:*.WindowsSecurityContextOptions RunAsUser:*int64
  RunAsGroup:*int64 RunAsNonRoot:*bool SupplementalGroups:[]int64
  SupplementalGroupsPolicy:*.SupplementalGroupsPolicy FSGroup:*int64
  FSGroupChangePolicy:*.PodFSGroupChangePolicy Sysctls:[].Sysctl SeccompProfile:*.SeccompProfile
  AppArmorProfile:*.AppArmorProfile SELinuxChangePolicy:*.PodSELinuxChangePolicy
.Sysctl Name Value
.Affinity NodeAffinity:*.NodeAffinity PodAffinity:*.PodAffinity PodAntiAffinity:*.PodAntiAffinity
.NodeAffinity RequiredDuringSchedulingIgnoredDuringExecution:*.NodeSelector
  PreferredDuringSchedulingIgnoredDuringExecution:[].PreferredSchedulingTerm
.NodeSelector NodeSelectorTerms:[].NodeSelectorTerm
.NodeSelectorTerm MatchExpressions:[].NodeSelectorRequirement MatchFields:[].NodeSelectorRequirement
.NodeSelectorRequirement Key Operator:.NodeSelectorOperator Values:[]string
.PreferredSchedulingTerm Weight:int32 Preference:.NodeSelectorTerm
.PodAffinity RequiredDuringSchedulingIgnoredDuringExecution:[].PodAffinityTerm
  PreferredDuringSchedulingIgnoredDuringExecution:[].WeightedPodAffinityTerm
.PodAffinityTerm LabelSelector:*v1.LabelSelector Namespaces:[]string TopologyKey
  NamespaceSelector:*v1.LabelSelector MatchLabelKeys:[]string MismatchLabelKeys:[]string
v1.LabelSelector MatchLabels:map[string]string MatchExpressions:[]v1.LabelSelectorRequirement
v1.LabelSelectorRequirement Key Operator:v1.LabelSelectorOperator Values:[]string
.WeightedPodAffinityTerm Weight:int32 PodAffinityTerm:.PodAffinityTerm
.PodAntiAffinity RequiredDuringSchedulingIgnoredDuringExecution:[].PodAffinityTerm
  PreferredDuringSchedulingIgnoredDuringExecution:[].WeightedPodAffinityTerm
.Toleration Key Operator:.TolerationOperator Value Effect:.TaintEffect TolerationSeconds:*int64
.HostAlias IP Hostnames:[]string
.PodDNSConfig Nameservers:[]string Searches:[]string Options:[].PodDNSConfigOption
.PodDNSConfigOption Name Value:*string
.PodReadinessGate ConditionType:.PodConditionType
.TopologySpreadConstraint MaxSkew:int32 TopologyKey WhenUnsatisfiable:.UnsatisfiableConstraintAction
  LabelSelector:*v1.LabelSelector MinDomains:*int32 NodeAffinityPolicy:*.NodeInclusionPolicy
  NodeTaintsPolicy:*.NodeInclusionPolicy MatchLabelKeys:[]string
.PodOS Name:.OSName
.PodStatus ObservedGeneration:int64 Phase:.PodPhase Conditions:[].PodCondition Message Reason
  NominatedNodeName HostIP HostIPs:[].HostIP PodIPs:[].PodIP StartTime:*v1.Time QOSClass:.PodQOSClass
  InitContainerStatuses:[].ContainerStatus ContainerStatuses:[].ContainerStatus
  EphemeralContainerStatuses:[].ContainerStatus Resize:.PodResizeStatus
  ResourceClaimStatuses:[].PodResourceClaimStatus
  ExtendedResourceClaimStatus:*.PodExtendedResourceClaimStatus AllocatedResources:.ResourceList
  Resources:*.ResourceRequirements
  NodeAllocatableResourceClaimStatuses:[].NodeAllocatableResourceClaimStatus
"""


LISTED: Final = {
    f"core{name}" if name.startswith(".") else name: members
    for name, _, members in (
        line.partition(" ") for line in STRUCTURES.replace("\n  ", " ").strip().splitlines()
    )
}
"""The fields of each structure in the notation above, by the structure's name as Go prints it."""


@cache
def fields(kind: str) -> list[tuple[str, str]]:
    """Return the (field, type) pairs of a structure; types are spelled as in Go."""
    listed = _CORE.sub(r"\1core.", LISTED[kind]).split()
    pairs = [field.partition(":") for field in listed]
    return [(field, kind or "string") for field, _, kind in pairs]
