"""What the kubelet refuses of a static pod is refused, field by field; what it takes is taken."""

from __future__ import annotations

from typing import Any

import pytest

from engine.api.defaults import apply_defaults
from engine.api.documents import parse_pods
from engine.api.errors import InvalidInput
from engine.api.validation import problems

PROBE = "exec: {command: [x]}"
UID = "{fieldPath: metadata.uid}"
NODE = "{fieldPath: spec.nodeName}"
HALF = "{resourceFieldRef: {resource: limits.cpu, divisor: 2}}"


def found(text: str) -> list[str]:
    try:
        (pod,), _ = parse_pods(text.encode(), "a.yaml")
    except InvalidInput as error:
        return [error.message]
    apply_defaults(pod)
    return list(problems(pod))


def pod(container: str = "", spec: str = "", metadata: str = "") -> str:
    return (
        "apiVersion: v1\nkind: Pod\n"
        f"metadata: {{name: a{metadata}}}\n"
        f"spec: {{containers: [{{name: c, image: i{container}}}]{spec}}}\n"
    )


RESIZE = "{resourceName: cpu, restartPolicy: NotRequired}"
RESTARTING = ", resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]"
OWNER = "{apiVersion: v1, kind: Node, name: o, uid: u, controller: true}"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SPREAD = "{maxSkew: 1, topologyKey: k, whenUnsatisfiable: DoNotSchedule}"
INIT = ", initContainers: [{name: b, image: i, resources: {requests: {cpu: 2}}}]"


def resources(of_pod: str, of_container: str) -> str:
    """Return YAML with the resources of a pod and, if given, of its only container."""
    containers = (
        f", containers: [{{name: c, image: i, resources: {{{of_container}}}}}]" if of_container else ""
    )
    return f", resources: {{{of_pod}}}{containers}"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"container": f", livenessProbe: {{{PROBE}, successThreshold: 2}}"}, "livenessProbe.successThreshold"),
    ({"container": f", startupProbe: {{{PROBE}, successThreshold: 2}}"}, "startupProbe.successThreshold"),
    ({"container": f", readinessProbe: {{{PROBE}, periodSeconds: -1}}"}, "readinessProbe.periodSeconds"),
    ({"container": f", readinessProbe: {{{PROBE}, timeoutSeconds: 2147483648}}"}, "timeoutSeconds"),
    (
        {"container": f", livenessProbe: {{{PROBE}, terminationGracePeriodSeconds: 0}}"},
        "livenessProbe.terminationGracePeriodSeconds",
    ),
    ({"container": ", livenessProbe: {httpGet: {port: 0}}"}, "httpGet.port"),
    ({"container": ", livenessProbe: {httpGet: {port: 70000}}"}, "httpGet.port"),
    ({"container": ", livenessProbe: {httpGet: {port: 80, scheme: ftp}}"}, "httpGet.scheme"),
    (
        {"container": ", livenessProbe: {httpGet: {port: 8, httpHeaders: [{name: a b}]}}"},
        "httpGet.httpHeaders",
    ),
    ({"container": ", livenessProbe: {tcpSocket: {port: Not_a_name}}"}, "tcpSocket.port"),
    ({"container": ", livenessProbe: {grpc: {port: 0}}"}, "grpc.port"),
    ({"container": ", lifecycle: {preStop: {sleep: {seconds: 31}}}"}, "preStop.sleep.seconds"),
    (
        {"spec": f", initContainers: [{{name: b, image: i, readinessProbe: {{{PROBE}}}}}]"},
        "initContainers[0]",
    ),
    (
        {"spec": f", initContainers: [{{name: b, image: i, lifecycle: {{preStop: {{{PROBE}}}}}}}]"},
        "lifecycle",
    ),
    ({"spec": ", dnsPolicy: None"}, "spec.dnsConfig.nameservers"),
    ({"spec": ", dnsPolicy: Sometimes"}, "spec.dnsPolicy"),
    ({"spec": ", dnsConfig: {nameservers: [x]}"}, "spec.dnsConfig.nameservers[0]"),
    ({"spec": ", dnsConfig: {nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]}"}, "nameservers"),
    ({"spec": ", dnsConfig: {searches: [-a-]}"}, "spec.dnsConfig.searches[0]"),
    ({"spec": ", dnsConfig: {options: [{value: a}]}"}, "spec.dnsConfig.options[0]"),
    (
        {"container": ", ports: [{containerPort: 80, hostPort: 81}]", "spec": ", hostNetwork: true"},
        "ports[0].hostPort",
    ),
    ({"container": ", ports: [{containerPort: 80, name: UPPER}]"}, "ports[0].name"),
    ({"container": ", ports: [{containerPort: 8, name: a}, {containerPort: 9, name: a}]"}, "ports[1].name"),
    ({"container": ", env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.containers}}}]"}, "fieldPath"),
    ({"container": ", env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}]"}, "fieldPath"),
    (
        {"container": ", env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"},
        "value",
    ),
    ({"container": ", env: [{name: A, valueFrom: {}}]"}, "valueFrom"),
    ({"container": ", env: [{name: A=B}]"}, "env[0].name"),
    ({"container": ", env: [{name: A, valueFrom: {resourceFieldRef: {resource: cpu}}}]"}, "resource:"),
    (
        {"container": ", env: [{name: A, valueFrom: " + HALF + "}]"},
        "divisor",
    ),
    ({"spec": ", activeDeadlineSeconds: 0"}, "spec.activeDeadlineSeconds"),
    ({"spec": ", activeDeadlineSeconds: 2147483648"}, "spec.activeDeadlineSeconds"),
    ({"spec": ", priority: 2147483648"}, "spec.priority"),
    ({"spec": ", schedulingGates: [{name: a.b/c}]"}, "spec.schedulingGates"),
    ({"spec": ", serviceAccountName: default"}, "spec.serviceAccountName"),
    ({"spec": ", serviceAccount: default"}, "spec.serviceAccountName"),
    ({"spec": ", imagePullSecrets: [{name: s}]"}, "spec.imagePullSecrets"),
    ({"spec": ", hostname: Not.Label"}, "spec.hostname"),
    ({"spec": ", subdomain: -x"}, "spec.subdomain"),
    ({"spec": ", hostAliases: [{ip: 1.2.3, hostnames: [a]}]"}, "spec.hostAliases[0].ip"),
    ({"spec": ", hostAliases: [{ip: 1.2.3.4, hostnames: [a_b]}]"}, "hostnames[0]"),
    ({"spec": ", nodeSelector: {a/b/c: d}"}, "spec.nodeSelector"),
    ({"spec": ", nodeSelector: {a: '!'}"}, "spec.nodeSelector"),
    ({"spec": ", tolerations: [{operator: Equal}]"}, "spec.tolerations[0].operator"),
    ({"spec": ", tolerations: [{key: a, operator: Exists, value: b}]"}, "spec.tolerations[0].value"),
    ({"spec": ", tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 1}]"}, "effect"),
    ({"spec": ", preemptionPolicy: Maybe"}, "spec.preemptionPolicy"),
    ({"spec": ", shareProcessNamespace: true, hostPID: true"}, "spec.shareProcessNamespace"),
    ({"spec": ", hostUsers: false, hostIPC: true"}, "spec.hostIPC"),
    ({"spec": ", securityContext: {runAsUser: -1}"}, "spec.securityContext.runAsUser"),
    ({"spec": ", securityContext: {fsGroup: 2147483648}"}, "spec.securityContext.fsGroup"),
    ({"spec": ", securityContext: {seccompProfile: {type: Localhost}}"}, "localhostProfile"),
    ({"spec": ", securityContext: {seccompProfile: {type: Localhost, localhostProfile: ../x}}"}, "localhost"),
    ({"spec": ", securityContext: {sysctls: [{name: 'a b', value: c}]}"}, "sysctls[0].name"),
    ({"spec": ", securityContext: {sysctls: [{name: a.b}, {name: a.b}]}"}, "sysctls[1].name"),
    ({"container": ", securityContext: {procMount: Unmasked}"}, "procMount"),
    (
        {"container": ", securityContext: {privileged: true, allowPrivilegeEscalation: false}"},
        "cannot combine",
    ),
    ({"container": ", terminationMessagePolicy: Never"}, "terminationMessagePolicy"),
    ({"container": ", restartPolicy: Sometimes"}, "containers[0].restartPolicy"),
    ({"spec": ", volumes: [{name: v, hostPath: {path: ''}}]"}, "hostPath.path"),
    ({"spec": ", volumes: [{name: v, hostPath: {path: /a/../b}}]"}, "hostPath.path"),
    ({"spec": ", volumes: [{name: v, hostPath: {path: /a, type: Pipe}}]"}, "hostPath.type"),
    ({"spec": ", volumes: [{name: v, downwardAPI: {defaultMode: 512}}]"}, "downwardAPI.defaultMode"),
    (
        {"spec": ", volumes: [{name: v, downwardAPI: {items: [{path: a}]}}]"},
        "downwardAPI.items[0]: expected exactly one",
    ),
    (
        {"spec": ", volumes: [{name: v, downwardAPI: {items: [{path: ../a, fieldRef: " + UID + "}]}}]"},
        "items[0].path",
    ),
    (
        {"spec": ", volumes: [{name: v, downwardAPI: {items: [{path: a, fieldRef: " + NODE + "}]}}]"},
        "items[0].fieldRef.fieldPath",
    ),
    ({"spec": ", volumes: [{name: v, emptyDir: {}, hostPath: {path: /a}}]"}, "exactly one source"),
    ({"container": ", lifecycle: {stopSignal: SIGTERM}"}, "lifecycle.stopSignal: requires spec.os"),
    ({"container": ", lifecycle: {stopSignal: SIGUSR1}", "spec": ", os: {name: windows}"}, "stopSignal"),
    ({"container": ", lifecycle: {stopSignal: SIGRTMIN+16}", "spec": ", os: {name: linux}"}, "stopSignal"),
    ({"metadata": ", labels: {a: 'b c'}"}, "metadata.labels.a"),
    ({"metadata": ", labels: {'a b': c}"}, "metadata.labels"),
    ({"metadata": ", annotations: {'a b': c}"}, "metadata.annotations"),
    ({"spec": resources("requests: {cpu: 1}", "requests: {cpu: 2}")}, "spec.resources.requests.cpu"),
    ({"spec": resources("limits: {memory: 1Mi}", "limits: {memory: 2Mi}")}, "spec.resources.requests.memory"),
    (
        {"spec": resources("requests: {cpu: 1}, limits: {cpu: 2}", "requests: {cpu: 1}, limits: {cpu: 3}")},
        "spec.containers[0].resources.limits.cpu",
    ),
    (
        {"spec": resources("limits: {cpu: 1, hugepages-2Mi: 2Mi}", "limits: {cpu: 1, hugepages-2Mi: 4Mi}")},
        "spec.resources.requests.hugepages-2Mi",
    ),
    ({"spec": resources("limits: {hugepages-2Mi: 2Mi}", "")}, "spec.resources: huge pages require"),
    ({"spec": resources("limits: {cpu: 1, hugepages-2Mi: 3Mi}", "")}, "spec.resources.limits.hugepages-2Mi"),
    ({"spec": resources("requests: {cpu: 1, hugepages-2Mi: 2Mi}", "")}, "requests.hugepages-2Mi: expected a"),
    ({"spec": resources("limits: {example.com/x: 1}", "")}, "spec.resources.limits.example.com/x"),
    ({"spec": resources("claims: []", "")}, "spec.resources.claims"),
    ({"spec": resources("limits: {cpu: 1}", "") + ", os: {name: windows}"}, "spec.resources"),
    ({"spec": INIT + resources("requests: {cpu: 1}", "")}, "spec.resources.requests.cpu"),
    ({"container": ", resources: {limits: {hugepages-2Mi: 2Mi}}"}, "resources: huge pages require"),
    ({"container": ", resources: {limits: {cpu: 1, hugepages-2Mi: 3Mi}}"}, "limits.hugepages-2Mi"),
    (
        {"container": ", resources: {requests: {example.com/x: 1}}"},
        "requests.example.com/x: expected",
    ),
    ({"container": ", resources: {requests: {foo: 1}}"}, "requests.foo: unknown resource"),
    ({"container": ", resizePolicy: [" + RESIZE + ", " + RESIZE + "]"}, "resizePolicy[1].resourceName"),
    ({"container": ", resizePolicy: [{resourceName: pods, restartPolicy: NotRequired}]"}, "resourceName"),
    ({"container": ", resizePolicy: [{resourceName: cpu, restartPolicy: Maybe}]"}, "resizePolicy[0].restart"),
    ({"container": RESTARTING, "spec": ", restartPolicy: Never"}, "resizePolicy[0].restartPolicy"),
    ({"spec": f", initContainers: [{{name: b, image: i{RESTARTING}}}]"}, "initContainers[0].resizePolicy"),
    ({"spec": ", hostnameOverride: UPPER"}, "spec.hostnameOverride"),
    ({"spec": ", hostnameOverride: ''"}, "spec.hostnameOverride"),
    ({"spec": f", hostnameOverride: {'x' * 65}"}, "spec.hostnameOverride"),
    ({"spec": ", hostnameOverride: x, setHostnameAsFQDN: true"}, "spec.hostnameOverride"),
    ({"spec": ", hostnameOverride: x, hostNetwork: true"}, "spec.hostnameOverride"),
    (
        {"container": f", readinessProbe: {{{PROBE}, terminationGracePeriodSeconds: 5}}"},
        "readinessProbe.terminationGracePeriodSeconds",
    ),
    (
        {"spec": ", os: {name: linux}, securityContext: {windowsOptions: {}}"},
        "securityContext.windowsOptions",
    ),
    ({"spec": ", os: {name: windows}, hostPID: true"}, "spec.hostPID: must not be set for a Windows pod"),
    ({"spec": ", os: {name: windows}, securityContext: {fsGroup: 1}"}, "securityContext.fsGroup"),
    (
        {"container": ", securityContext: {procMount: Default}", "spec": ", os: {name: windows}"},
        "containers[0].securityContext.procMount",
    ),
    ({"container": ", securityContext: {windowsOptions: {hostProcess: true}}"}, "spec.hostNetwork"),
    (
        {
            "container": ", securityContext: {windowsOptions: {hostProcess: false}}",
            "spec": ", hostNetwork: true, securityContext: {windowsOptions: {hostProcess: true}}",
        },
        "windowsOptions.hostProcess",
    ),
    ({"spec": ", securityContext: {seLinuxChangePolicy: X}"}, "securityContext.seLinuxChangePolicy"),
    (
        {"spec": ", securityContext: {seLinuxChangePolicy: MountOption}"},
        "securityContext.seLinuxChangePolicy",
    ),
    (
        {"spec": ", securityContext: {appArmorProfile: {type: Localhost, localhostProfile: ' '}}"},
        "appArmorProfile.localhostProfile",
    ),
    ({"spec": ", hostNetwork: true, securityContext: {sysctls: [{name: net.ipv4.x}]}"}, "sysctls[0].name"),
    ({"spec": ", hostNetwork: true, securityContext: {sysctls: [{name: net/ipv4/x}]}"}, "sysctls[0].name"),
    ({"spec": ", hostIPC: true, securityContext: {sysctls: [{name: kernel.sem}]}"}, "sysctls[0].name"),
    ({"spec": ", volumes: [{name: v, projected: {sources: [{}]}}]"}, "projected.sources[0]"),
    (
        {"spec": ", volumes: [{name: v, projected: {sources: [{downwardAPI: {}, secret: {name: s}}]}}]"},
        "projected.sources[0]",
    ),
    ({"spec": ", overhead: {foo: 1}"}, "spec.overhead.foo"),
    ({"spec": ", readinessGates: [{conditionType: bad type}]"}, "spec.readinessGates[0].conditionType"),
    ({"container": ", envFrom: [{}]"}, "envFrom[0]"),
    ({"metadata": ", finalizers: [x]"}, "metadata.finalizers[0]"),
    ({"metadata": ", finalizers: [orphan, foregroundDeletion]"}, "metadata.finalizers"),
    (
        {"metadata": ", ownerReferences: [{apiVersion: v1, kind: Event, name: o, uid: u}]"},
        "ownerReferences[0]",
    ),
    ({"metadata": ", ownerReferences: [{kind: Node, name: o, uid: u}]"}, "ownerReferences[0].apiVersion"),
    ({"metadata": f", ownerReferences: [{OWNER}, {OWNER}]"}, "metadata.ownerReferences: only one"),
    (
        {
            "metadata": ", annotations: {seccomp.security.alpha.kubernetes.io/pod: unconfined}",
            "spec": ", securityContext: {seccompProfile: {type: RuntimeDefault}}",
        },
        "spec.securityContext.seccompProfile: differs",
    ),
    (
        {"spec": ", affinity: {nodeAffinity: {" + REQUIRED + ": {nodeSelectorTerms: []}}}"},
        "nodeSelectorTerms",
    ),
    ({"spec": ", affinity: {podAffinity: {" + REQUIRED + ": [{topologyKey: ''}]}}"}, "topologyKey"),
    ({"spec": f", topologySpreadConstraints: [{SPREAD}, {SPREAD}]"}, "topologySpreadConstraints[1]"),
    (
        {"container": ", ports: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80}]"},
        "ports[1].hostPort",
    ),
]


NODES = f", affinity: {{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: [{{%s}}]}}}}}}"
PODS = f", affinity: {{podAffinity: {{{REQUIRED}: [{{topologyKey: k, %s}}]}}}}"
RULE = "{action: Restart, exitCodes: {operator: In, values: [%s]}}"
VOLUME = ", volumes: [{name: v, %s}]"
MOUNTS = ", volumeMounts: [%s]"
HOST_PROCESS = "securityContext: {windowsOptions: {hostProcess: %s}}"

REFUSED += [
    (
        {"spec": NODES % "matchFields: [{key: metadata.name, operator: In, values: [a, b]}]"},
        "values: expected one",
    ),
    ({"spec": NODES % "matchExpressions: [{key: a, operator: In}]"}, "values: expected at least one"),
    (
        {"spec": NODES % "matchExpressions: [{key: a, operator: Gt, values: ['1', '2']}]"},
        "values: expected one",
    ),
    (
        {
            "spec": PODS % "labelSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, "
            "values: [b]}]}, matchLabelKeys: [a]"
        },
        "matchLabelKeys: 'a' is a key",
    ),
    (
        {"spec": PODS % "labelSelector: {}, matchLabelKeys: [a], mismatchLabelKeys: [a]"},
        "matchLabelKeys: 'a' is one of mismatchLabelKeys",
    ),
    (
        {
            "spec": ", topologySpreadConstraints: [{maxSkew: 1, topologyKey: k, minDomains: 2, "
            "whenUnsatisfiable: ScheduleAnyway}]"
        },
        "minDomains: requires whenUnsatisfiable",
    ),
    ({"spec": ", containers: []"}, "spec.containers: expected at least one"),
    ({"spec": ", initContainers: [{name: c, image: i}]"}, "'c' is already the name of another"),
    ({"spec": ", containers: [{name: c, image: ' i'}]"}, "image: must not begin or end with white space"),
    (
        {
            "container": MOUNTS % "{name: v, mountPath: /a}, {name: v, mountPath: /a}",
            "spec": VOLUME % "emptyDir: {}",
        },
        "'/a' is mounted twice",
    ),
    (
        {
            "container": MOUNTS % "{name: v, mountPath: /a, readOnly: true, recursiveReadOnly: Enabled, "
            "mountPropagation: HostToContainer}",
            "spec": VOLUME % "emptyDir: {}",
        },
        "recursiveReadOnly: must not be set with mountPropagation",
    ),
    ({"container": f", restartPolicyRules: [{RULE % 1}]"}, "must specify restartPolicy when restart rules"),
    (
        {"container": f", restartPolicy: Never, restartPolicyRules: [{', '.join([RULE % 1] * 21)}]"},
        "restartPolicyRules: expected at most 20",
    ),
    (
        {"container": ", restartPolicy: Never, restartPolicyRules: [{action: Restart}]"},
        "exitCodes: must be specified",
    ),
    (
        {
            "container": ", restartPolicy: Never, restartPolicyRules: "
            f"[{RULE % ', '.join(map(str, range(256)))}]"
        },
        "exitCodes.values: expected at most",
    ),
    (
        {"spec": f", dnsConfig: {{searches: [{', '.join(f's{number}' for number in range(33))}]}}"},
        "searches: at most 32",
    ),
    ({"metadata": ", uid: 'a b'"}, "metadata.uid: expected letters"),
    ({"container": ", livenessProbe: {}"}, "expected exactly one handler"),
    ({"container": f", livenessProbe: {{{PROBE}, tcpSocket: {{port: 1}}}}"}, "expected exactly one handler"),
    ({"container": ", livenessProbe: {exec: {command: []}}"}, "exec.command: expected a command"),
    (
        {"container": ", resources: {requests: {example.com/x: 1}, limits: {example.com/x: 2}}"},
        "requests.example.com/x: expected to equal the limit 2",
    ),
    ({"container": ", resources: {limits: {cpu: 10E}}"}, "does not fit in 64 bits"),
    (
        {
            "container": ", securityContext: {allowPrivilegeEscalation: false, "
            "capabilities: {add: [CAP_SYS_ADMIN]}}"
        },
        "with the capability CAP_SYS_ADMIN",
    ),
    (
        {"spec": ", volumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]"},
        "already the name of another volume",
    ),
    ({"spec": VOLUME % "fc: {targetWWNs: [a], lun: 256}"}, "lun: expected 0 to 255, got 256"),
    (
        {
            "spec": VOLUME % "projected: {sources: [{downwardAPI: {items: [{path: a, fieldRef: {fieldPath: "
            "metadata.name}}]}}, {downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}]}}]}"
        },
        "'a' is the path of two files",
    ),
    ({"spec": ", os: {name: windows}, hostUsers: true"}, "spec.hostUsers: must not be set for a Windows pod"),
    (
        {"spec": ", os: {name: windows}, securityContext: {sysctls: [{name: kernel.sem, value: '1'}]}"},
        "securityContext.sysctls: must not be set for a Windows pod",
    ),
    (
        {
            "spec": ", os: {name: windows}, hostNetwork: true, containers: [{name: d, image: i}, "
            f"{{name: c, image: i, {HOST_PROCESS % 'true'}}}]"
        },
        "either all containers or none are hostProcess",
    ),
]


@pytest.mark.parametrize(("parts", "names"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_is_refused(parts: dict[str, str], names: str) -> None:
    said = found(pod(**parts))
    assert said
    assert names in said[0], said


@pytest.mark.parametrize(
    ("mount", "names"),
    [
        ("mountPath: ''", "mountPath: expected a path"),
        ("mountPath: /a, subPath: /b", "subPath"),
        ("mountPath: /a, subPath: a/../b", "subPath"),
        ("mountPath: /a, subPath: a, subPathExpr: b", "subPathExpr"),
        ("mountPath: /a, mountPropagation: Bidirectional", "privileged"),
        ("mountPath: /a, mountPropagation: Both", "mountPropagation"),
        ("mountPath: /a, recursiveReadOnly: Enabled", "recursiveReadOnly"),
    ],
)
def test_a_mount_is_refused(mount: str, names: str) -> None:
    said = found(pod(f", volumeMounts: [{{name: v, {mount}}}]", ", volumes: [{name: v, emptyDir: {}}]"))
    assert len(said) == 1, said
    assert names in said[0]


TAKEN: list[dict[str, Any]] = [
    {"spec": resources("limits: {cpu: 1, hugepages-2Mi: 4Mi}", "limits: {cpu: 1, hugepages-2Mi: 4Mi}")},
    {"spec": resources("limits: {memory: 2Mi}", "requests: {memory: 1Mi}")},
    {"container": ", resources: {limits: {kubernetes.io/x: 1}}"},
    {"container": RESTARTING},
    {"container": ", env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.host}}}]"},
    {"spec": f", initContainers: [{{name: b, image: i, restartPolicy: Always{RESTARTING}}}]"},
    {"spec": ", volumes: [{name: v, emptyDir: {medium: HugePages}}, {name: w, emptyDir: {medium: Disk}}]"},
    {"spec": ", volumes: [{name: v, hostPath: {path: relative}}]"},
    {"spec": ", hostIPC: true, securityContext: {sysctls: [{name: net.ipv4.x}]}"},
    {"spec": ", imagePullSecrets: [{}]"},
    {"metadata": ", finalizers: [example.com/x, orphan]"},
    {"container": f", readinessProbe: {{{PROBE}, successThreshold: 2}}"},
    {"container": f", livenessProbe: {{{PROBE}, successThreshold: 0, periodSeconds: 0}}"},
    {"container": ", livenessProbe: {httpGet: {port: web}}"},
    {"container": ", ports: [{containerPort: 80, protocol: ''}]", "spec": ", hostNetwork: true"},
    {"container": ", env: [{name: 'a b.c-d', value: ''}]"},
    {"container": ", env: [{name: A, value: '', valueFrom: {fieldRef: {fieldPath: status.podIPs}}}]"},
    {"container": """, env: [{name: A, valueFrom: {fieldRef: {fieldPath: "metadata.labels['a.b/c']"}}}]"""},
    {"container": ", env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.hugepages-2Mi}}}]"},
    {"container": ", lifecycle: {preStop: {sleep: {seconds: 0}}}"},
    {"spec": f", initContainers: [{{name: b, image: i, restartPolicy: Always, startupProbe: {{{PROBE}}}}}]"},
    {"spec": ", dnsPolicy: None, dnsConfig: {nameservers: ['::1'], searches: [., a_b.c.]}"},
    {"spec": ", activeDeadlineSeconds: 1, priority: 2000001000, priorityClassName: system-node-critical"},
    {"spec": ", tolerations: [{operator: Exists}, {key: a.b/c, value: d, effect: NoExecute}]"},
    {"spec": ", volumes: [{name: v}]"},
    {"spec": ", os: {name: windows}"},
    {"container": ", lifecycle: {stopSignal: SIGRTMAX-14}", "spec": ", os: {name: linux}"},
    {"spec": ", terminationGracePeriodSeconds: -5"},
    {"spec": ", securityContext: {sysctls: [{name: net.ipv4.ip_local_port_range, value: 1 2}]}"},
    {
        "spec": ", serviceAccountName: default",
        "metadata": ", annotations: {kubernetes.io/config.source: api}",
    },
    {"metadata": ", labels: {a.b/C: ''}, annotations: {A.b/C: anything goes}"},
]


@pytest.mark.parametrize("parts", TAKEN, ids=[str(number) for number in range(len(TAKEN))])
def test_is_taken(parts: dict[str, str]) -> None:
    assert found(pod(**parts)) == []
