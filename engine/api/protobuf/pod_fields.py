"""Lists the fields of the messages of a v1 Pod, with the numbers that Kubernetes' protobuf form gives them.

One message begins at the left margin; each field is its number, its JSON name and its type: `s` a string, `i`
a number, `b` a boolean, or another message; `[T]` is a list, and `{T}` a map from strings. A field `!T` has
no name: JSON has the fields of T in the message itself. Source: Kubernetes v1.36.
"""

from __future__ import annotations

from typing import Final

POD_MESSAGES: Final = """\
AWSElasticBlockStoreVolumeSource: 1 volumeID s, 2 fsType s, 3 partition i, 4 readOnly b
Affinity: 1 nodeAffinity NodeAffinity, 2 podAffinity PodAffinity, 3 podAntiAffinity PodAntiAffinity
AppArmorProfile: 1 type s, 2 localhostProfile s
AzureDiskVolumeSource: 1 diskName s, 2 diskURI s, 3 cachingMode s, 4 fsType s, 5 readOnly b, 6 kind s
AzureFileVolumeSource: 1 secretName s, 2 shareName s, 3 readOnly b
CSIVolumeSource: 1 driver s, 2 readOnly b, 3 fsType s, 4 volumeAttributes {s}, 5 nodePublishSecretRef
  LocalObjectReference
Capabilities: 1 add [s], 2 drop [s]
CephFSVolumeSource: 1 monitors [s], 2 path s, 3 user s, 4 secretFile s, 5 secretRef LocalObjectReference,
  6 readOnly b
CinderVolumeSource: 1 volumeID s, 2 fsType s, 3 readOnly b, 4 secretRef LocalObjectReference
ClusterTrustBundleProjection: 1 name s, 2 signerName s, 3 labelSelector LabelSelector, 4 path s, 5
  optional b
ConfigMapEnvSource: 1 !LocalObjectReference, 2 optional b
ConfigMapKeySelector: 1 !LocalObjectReference, 2 key s, 3 optional b
ConfigMapProjection: 1 !LocalObjectReference, 2 items [KeyToPath], 4 optional b
ConfigMapVolumeSource: 1 !LocalObjectReference, 2 items [KeyToPath], 3 defaultMode i, 4 optional b
Container: 1 name s, 2 image s, 3 command [s], 4 args [s], 5 workingDir s, 6 ports [ContainerPort], 7 env
  [EnvVar], 8 resources ResourceRequirements, 9 volumeMounts [VolumeMount], 10 livenessProbe Probe, 11
  readinessProbe Probe, 12 lifecycle Lifecycle, 13 terminationMessagePath s, 14 imagePullPolicy s, 15
  securityContext SecurityContext, 16 stdin b, 17 stdinOnce b, 18 tty b, 19 envFrom [EnvFromSource], 20
  terminationMessagePolicy s, 21 volumeDevices [VolumeDevice], 22 startupProbe Probe, 23 resizePolicy
  [ContainerResizePolicy], 24 restartPolicy s, 25 restartPolicyRules [ContainerRestartRule]
ContainerExtendedResourceRequest: 1 containerName s, 2 resourceName s, 3 requestName s
ContainerPort: 1 name s, 2 hostPort i, 3 containerPort i, 4 protocol s, 5 hostIP s
ContainerResizePolicy: 1 resourceName s, 2 restartPolicy s
ContainerRestartRule: 1 action s, 2 exitCodes ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes: 1 operator s, 2 values [i]
ContainerState: 1 waiting ContainerStateWaiting, 2 running ContainerStateRunning, 3 terminated
  ContainerStateTerminated
ContainerStateRunning: 1 startedAt Time
ContainerStateTerminated: 1 exitCode i, 2 signal i, 3 reason s, 4 message s, 5 startedAt Time, 6
  finishedAt Time, 7 containerID s
ContainerStateWaiting: 1 reason s, 2 message s
ContainerStatus: 1 name s, 2 state ContainerState, 3 lastState ContainerState, 4 ready b, 5 restartCount
  i, 6 image s, 7 imageID s, 8 containerID s, 9 started b, 10 allocatedResources {Quantity}, 11 resources
  ResourceRequirements, 12 volumeMounts [VolumeMountStatus], 13 user ContainerUser, 14
  allocatedResourcesStatus [ResourceStatus], 15 stopSignal s
ContainerUser: 1 linux LinuxContainerUser
DownwardAPIProjection: 1 items [DownwardAPIVolumeFile]
DownwardAPIVolumeFile: 1 path s, 2 fieldRef ObjectFieldSelector, 3 resourceFieldRef ResourceFieldSelector,
  4 mode i
DownwardAPIVolumeSource: 1 items [DownwardAPIVolumeFile], 2 defaultMode i
EmptyDirVolumeSource: 1 medium s, 2 sizeLimit Quantity
EnvFromSource: 1 prefix s, 2 configMapRef ConfigMapEnvSource, 3 secretRef SecretEnvSource
EnvVar: 1 name s, 2 value s, 3 valueFrom EnvVarSource
EnvVarSource: 1 fieldRef ObjectFieldSelector, 2 resourceFieldRef ResourceFieldSelector, 3 configMapKeyRef
  ConfigMapKeySelector, 4 secretKeyRef SecretKeySelector, 5 fileKeyRef FileKeySelector
EphemeralContainer: 1 !EphemeralContainerCommon, 2 targetContainerName s
EphemeralContainerCommon: 1 name s, 2 image s, 3 command [s], 4 args [s], 5 workingDir s, 6 ports
  [ContainerPort], 7 env [EnvVar], 8 resources ResourceRequirements, 9 volumeMounts [VolumeMount], 10
  livenessProbe Probe, 11 readinessProbe Probe, 12 lifecycle Lifecycle, 13 terminationMessagePath s, 14
  imagePullPolicy s, 15 securityContext SecurityContext, 16 stdin b, 17 stdinOnce b, 18 tty b, 19 envFrom
  [EnvFromSource], 20 terminationMessagePolicy s, 21 volumeDevices [VolumeDevice], 22 startupProbe Probe,
  23 resizePolicy [ContainerResizePolicy], 24 restartPolicy s, 25 restartPolicyRules
  [ContainerRestartRule]
EphemeralVolumeSource: 1 volumeClaimTemplate PersistentVolumeClaimTemplate
ExecAction: 1 command [s]
FCVolumeSource: 1 targetWWNs [s], 2 lun i, 3 fsType s, 4 readOnly b, 5 wwids [s]
FileKeySelector: 1 volumeName s, 2 path s, 3 key s, 4 optional b
FlexVolumeSource: 1 driver s, 2 fsType s, 3 secretRef LocalObjectReference, 4 readOnly b, 5 options {s}
FlockerVolumeSource: 1 datasetName s, 2 datasetUUID s
GCEPersistentDiskVolumeSource: 1 pdName s, 2 fsType s, 3 partition i, 4 readOnly b
GRPCAction: 1 port i, 2 service s
GitRepoVolumeSource: 1 repository s, 2 revision s, 3 directory s
GlusterfsVolumeSource: 1 endpoints s, 2 path s, 3 readOnly b
HTTPGetAction: 1 path s, 2 port IntOrString, 3 host s, 4 scheme s, 5 httpHeaders [HTTPHeader]
HTTPHeader: 1 name s, 2 value s
HostAlias: 1 ip s, 2 hostnames [s]
HostIP: 1 ip s
HostPathVolumeSource: 1 path s, 2 type s
ISCSIVolumeSource: 1 targetPortal s, 2 iqn s, 3 lun i, 4 iscsiInterface s, 5 fsType s, 6 readOnly b, 7
  portals [s], 8 chapAuthDiscovery b, 10 secretRef LocalObjectReference, 11 chapAuthSession b, 12
  initiatorName s
ImageVolumeSource: 1 reference s, 2 pullPolicy s
ImageVolumeStatus: 1 imageRef s
KeyToPath: 1 key s, 2 path s, 3 mode i
LabelSelector: 1 matchLabels {s}, 2 matchExpressions [LabelSelectorRequirement]
LabelSelectorRequirement: 1 key s, 2 operator s, 3 values [s]
Lifecycle: 1 postStart LifecycleHandler, 2 preStop LifecycleHandler, 3 stopSignal s
LifecycleHandler: 1 exec ExecAction, 2 httpGet HTTPGetAction, 3 tcpSocket TCPSocketAction, 4 sleep
  SleepAction
LinuxContainerUser: 1 uid i, 2 gid i, 3 supplementalGroups [i]
LocalObjectReference: 1 name s
ManagedFieldsEntry: 1 manager s, 2 operation s, 3 apiVersion s, 4 time Time, 6 fieldsType s, 7 fieldsV1
  FieldsV1, 8 subresource s
NFSVolumeSource: 1 server s, 2 path s, 3 readOnly b
NodeAffinity: 1 requiredDuringSchedulingIgnoredDuringExecution NodeSelector, 2
  preferredDuringSchedulingIgnoredDuringExecution [PreferredSchedulingTerm]
NodeAllocatableResourceClaimStatus: 1 resourceClaimName s, 2 containers [s], 3 resources {Quantity}
NodeSelector: 1 nodeSelectorTerms [NodeSelectorTerm]
NodeSelectorRequirement: 1 key s, 2 operator s, 3 values [s]
NodeSelectorTerm: 1 matchExpressions [NodeSelectorRequirement], 2 matchFields [NodeSelectorRequirement]
ObjectFieldSelector: 1 apiVersion s, 2 fieldPath s
ObjectMeta: 1 name s, 2 generateName s, 3 namespace s, 4 selfLink s, 5 uid s, 6 resourceVersion s, 7
  generation i, 8 creationTimestamp Time, 9 deletionTimestamp Time, 10 deletionGracePeriodSeconds i, 11
  labels {s}, 12 annotations {s}, 13 ownerReferences [OwnerReference], 14 finalizers [s], 17 managedFields
  [ManagedFieldsEntry]
OwnerReference: 1 kind s, 3 name s, 4 uid s, 5 apiVersion s, 6 controller b, 7 blockOwnerDeletion b
PersistentVolumeClaimSpec: 1 accessModes [s], 2 resources VolumeResourceRequirements, 3 volumeName s, 4
  selector LabelSelector, 5 storageClassName s, 6 volumeMode s, 7 dataSource TypedLocalObjectReference, 8
  dataSourceRef TypedObjectReference, 9 volumeAttributesClassName s
PersistentVolumeClaimTemplate: 1 metadata ObjectMeta, 2 spec PersistentVolumeClaimSpec
PersistentVolumeClaimVolumeSource: 1 claimName s, 2 readOnly b
PhotonPersistentDiskVolumeSource: 1 pdID s, 2 fsType s
Pod: 1 metadata ObjectMeta, 2 spec PodSpec, 3 status PodStatus
PodAffinity: 1 requiredDuringSchedulingIgnoredDuringExecution [PodAffinityTerm], 2
  preferredDuringSchedulingIgnoredDuringExecution [WeightedPodAffinityTerm]
PodAffinityTerm: 1 labelSelector LabelSelector, 2 namespaces [s], 3 topologyKey s, 4 namespaceSelector
  LabelSelector, 5 matchLabelKeys [s], 6 mismatchLabelKeys [s]
PodAntiAffinity: 1 requiredDuringSchedulingIgnoredDuringExecution [PodAffinityTerm], 2
  preferredDuringSchedulingIgnoredDuringExecution [WeightedPodAffinityTerm]
PodCertificateProjection: 1 signerName s, 2 keyType s, 3 maxExpirationSeconds i, 4 credentialBundlePath s,
  5 keyPath s, 6 certificateChainPath s, 7 userAnnotations {s}
PodCondition: 1 type s, 2 status s, 3 lastProbeTime Time, 4 lastTransitionTime Time, 5 reason s, 6 message
  s, 7 observedGeneration i
PodDNSConfig: 1 nameservers [s], 2 searches [s], 3 options [PodDNSConfigOption]
PodDNSConfigOption: 1 name s, 2 value s
PodExtendedResourceClaimStatus: 1 requestMappings [ContainerExtendedResourceRequest], 2 resourceClaimName
  s
PodIP: 1 ip s
PodOS: 1 name s
PodReadinessGate: 1 conditionType s
PodResourceClaim: 1 name s, 3 resourceClaimName s, 4 resourceClaimTemplateName s
PodResourceClaimStatus: 1 name s, 2 resourceClaimName s
PodSchedulingGate: 1 name s
PodSchedulingGroup: 1 podGroupName s
PodSecurityContext: 1 seLinuxOptions SELinuxOptions, 2 runAsUser i, 3 runAsNonRoot b, 4 supplementalGroups
  [i], 5 fsGroup i, 6 runAsGroup i, 7 sysctls [Sysctl], 8 windowsOptions WindowsSecurityContextOptions, 9
  fsGroupChangePolicy s, 10 seccompProfile SeccompProfile, 11 appArmorProfile AppArmorProfile, 12
  supplementalGroupsPolicy s, 13 seLinuxChangePolicy s
PodSpec: 1 volumes [Volume], 2 containers [Container], 3 restartPolicy s, 4 terminationGracePeriodSeconds
  i, 5 activeDeadlineSeconds i, 6 dnsPolicy s, 7 nodeSelector {s}, 8 serviceAccountName s, 9
  serviceAccount s, 10 nodeName s, 11 hostNetwork b, 12 hostPID b, 13 hostIPC b, 14 securityContext
  PodSecurityContext, 15 imagePullSecrets [LocalObjectReference], 16 hostname s, 17 subdomain s, 18
  affinity Affinity, 19 schedulerName s, 20 initContainers [Container], 21 automountServiceAccountToken b,
  22 tolerations [Toleration], 23 hostAliases [HostAlias], 24 priorityClassName s, 25 priority i, 26
  dnsConfig PodDNSConfig, 27 shareProcessNamespace b, 28 readinessGates [PodReadinessGate], 29
  runtimeClassName s, 30 enableServiceLinks b, 31 preemptionPolicy s, 32 overhead {Quantity}, 33
  topologySpreadConstraints [TopologySpreadConstraint], 34 ephemeralContainers [EphemeralContainer], 35
  setHostnameAsFQDN b, 36 os PodOS, 37 hostUsers b, 38 schedulingGates [PodSchedulingGate], 39
  resourceClaims [PodResourceClaim], 40 resources ResourceRequirements, 41 hostnameOverride s, 43
  schedulingGroup PodSchedulingGroup
PodStatus: 1 phase s, 2 conditions [PodCondition], 3 message s, 4 reason s, 5 hostIP s, 6 podIP s, 7
  startTime Time, 8 containerStatuses [ContainerStatus], 9 qosClass s, 10 initContainerStatuses
  [ContainerStatus], 11 nominatedNodeName s, 12 podIPs [PodIP], 13 ephemeralContainerStatuses
  [ContainerStatus], 14 resize s, 15 resourceClaimStatuses [PodResourceClaimStatus], 16 hostIPs [HostIP],
  17 observedGeneration i, 18 extendedResourceClaimStatus PodExtendedResourceClaimStatus, 19
  allocatedResources {Quantity}, 20 resources ResourceRequirements, 21
  nodeAllocatableResourceClaimStatuses [NodeAllocatableResourceClaimStatus]
PortworxVolumeSource: 1 volumeID s, 2 fsType s, 3 readOnly b
PreferredSchedulingTerm: 1 weight i, 2 preference NodeSelectorTerm
Probe: 1 !ProbeHandler, 2 initialDelaySeconds i, 3 timeoutSeconds i, 4 periodSeconds i, 5 successThreshold
  i, 6 failureThreshold i, 7 terminationGracePeriodSeconds i
ProbeHandler: 1 exec ExecAction, 2 httpGet HTTPGetAction, 3 tcpSocket TCPSocketAction, 4 grpc GRPCAction
ProjectedVolumeSource: 1 sources [VolumeProjection], 2 defaultMode i
QuobyteVolumeSource: 1 registry s, 2 volume s, 3 readOnly b, 4 user s, 5 group s, 6 tenant s
RBDVolumeSource: 1 monitors [s], 2 image s, 3 fsType s, 4 pool s, 5 user s, 6 keyring s, 7 secretRef
  LocalObjectReference, 8 readOnly b
ResourceClaim: 1 name s, 2 request s
ResourceFieldSelector: 1 containerName s, 2 resource s, 3 divisor Quantity
ResourceHealth: 1 resourceID s, 2 health s, 6 message s
ResourceRequirements: 1 limits {Quantity}, 2 requests {Quantity}, 3 claims [ResourceClaim]
ResourceStatus: 1 name s, 2 resources [ResourceHealth]
SELinuxOptions: 1 user s, 2 role s, 3 type s, 4 level s
ScaleIOVolumeSource: 1 gateway s, 2 system s, 3 secretRef LocalObjectReference, 4 sslEnabled b, 5
  protectionDomain s, 6 storagePool s, 7 storageMode s, 8 volumeName s, 9 fsType s, 10 readOnly b
SeccompProfile: 1 type s, 2 localhostProfile s
SecretEnvSource: 1 !LocalObjectReference, 2 optional b
SecretKeySelector: 1 !LocalObjectReference, 2 key s, 3 optional b
SecretProjection: 1 !LocalObjectReference, 2 items [KeyToPath], 4 optional b
SecretVolumeSource: 1 secretName s, 2 items [KeyToPath], 3 defaultMode i, 4 optional b
SecurityContext: 1 capabilities Capabilities, 2 privileged b, 3 seLinuxOptions SELinuxOptions, 4 runAsUser
  i, 5 runAsNonRoot b, 6 readOnlyRootFilesystem b, 7 allowPrivilegeEscalation b, 8 runAsGroup i, 9
  procMount s, 10 windowsOptions WindowsSecurityContextOptions, 11 seccompProfile SeccompProfile, 12
  appArmorProfile AppArmorProfile
ServiceAccountTokenProjection: 1 audience s, 2 expirationSeconds i, 3 path s
SleepAction: 1 seconds i
StorageOSVolumeSource: 1 volumeName s, 2 volumeNamespace s, 3 fsType s, 4 readOnly b, 5 secretRef
  LocalObjectReference
Sysctl: 1 name s, 2 value s
TCPSocketAction: 1 port IntOrString, 2 host s
Toleration: 1 key s, 2 operator s, 3 value s, 4 effect s, 5 tolerationSeconds i
TopologySpreadConstraint: 1 maxSkew i, 2 topologyKey s, 3 whenUnsatisfiable s, 4 labelSelector
  LabelSelector, 5 minDomains i, 6 nodeAffinityPolicy s, 7 nodeTaintsPolicy s, 8 matchLabelKeys [s]
TypedLocalObjectReference: 1 apiGroup s, 2 kind s, 3 name s
TypedObjectReference: 1 apiGroup s, 2 kind s, 3 name s, 4 namespace s
Volume: 1 name s, 2 !VolumeSource
VolumeDevice: 1 name s, 2 devicePath s
VolumeMount: 1 name s, 2 readOnly b, 3 mountPath s, 4 subPath s, 5 mountPropagation s, 6 subPathExpr s, 7
  recursiveReadOnly s
VolumeMountStatus: 1 name s, 2 mountPath s, 3 readOnly b, 4 recursiveReadOnly s, 5 volumeStatus
  VolumeStatus
VolumeProjection: 1 secret SecretProjection, 2 downwardAPI DownwardAPIProjection, 3 configMap
  ConfigMapProjection, 4 serviceAccountToken ServiceAccountTokenProjection, 5 clusterTrustBundle
  ClusterTrustBundleProjection, 6 podCertificate PodCertificateProjection
VolumeResourceRequirements: 1 limits {Quantity}, 2 requests {Quantity}
VolumeSource: 1 hostPath HostPathVolumeSource, 2 emptyDir EmptyDirVolumeSource, 3 gcePersistentDisk
  GCEPersistentDiskVolumeSource, 4 awsElasticBlockStore AWSElasticBlockStoreVolumeSource, 5 gitRepo
  GitRepoVolumeSource, 6 secret SecretVolumeSource, 7 nfs NFSVolumeSource, 8 iscsi ISCSIVolumeSource, 9
  glusterfs GlusterfsVolumeSource, 10 persistentVolumeClaim PersistentVolumeClaimVolumeSource, 11 rbd
  RBDVolumeSource, 12 flexVolume FlexVolumeSource, 13 cinder CinderVolumeSource, 14 cephfs
  CephFSVolumeSource, 15 flocker FlockerVolumeSource, 16 downwardAPI DownwardAPIVolumeSource, 17 fc
  FCVolumeSource, 18 azureFile AzureFileVolumeSource, 19 configMap ConfigMapVolumeSource, 20 vsphereVolume
  VsphereVirtualDiskVolumeSource, 21 quobyte QuobyteVolumeSource, 22 azureDisk AzureDiskVolumeSource, 23
  photonPersistentDisk PhotonPersistentDiskVolumeSource, 24 portworxVolume PortworxVolumeSource, 25
  scaleIO ScaleIOVolumeSource, 26 projected ProjectedVolumeSource, 27 storageos StorageOSVolumeSource, 28
  csi CSIVolumeSource, 29 ephemeral EphemeralVolumeSource, 30 image ImageVolumeSource
VolumeStatus: 1 image ImageVolumeStatus
VsphereVirtualDiskVolumeSource: 1 volumePath s, 2 fsType s, 3 storagePolicyName s, 4 storagePolicyID s
WeightedPodAffinityTerm: 1 weight i, 2 podAffinityTerm PodAffinityTerm
WindowsSecurityContextOptions: 1 gmsaCredentialSpecName s, 2 gmsaCredentialSpec s, 3 runAsUserName s, 4
  hostProcess b
"""
