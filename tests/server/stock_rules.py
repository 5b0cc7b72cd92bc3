"""The kubelet series that the common rules and dashboards of clusters query.

`RECORDED` holds recorded series that dashboards draw, `ASKED` the queries of alerts and dashboards for a
kubelet's own series.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CADVISOR = 'job="kubelet", metrics_path="/metrics/cadvisor"'
KUBELET = 'job="kubelet", metrics_path="/metrics"'
POD = "cluster, namespace, pod"
CONTAINER = f"{POD}, container"
DISKS = "(/dev/)?(mmcblk.p.+|nvme.+|rbd.+|sd.+|vd.+|xvd.+|dm-.+|md.+|dasd.+)"
NODE_OF_POD = (
    f'* on ({POD}) group_left (node) topk by ({POD}) (1, max by ({POD}, node) (kube_pod_info{{node!=""}}))'
)
NODE_OF_KUBELET = (
    f"* on (cluster, instance) group_left (node) "
    f"max by (cluster, instance, node) (kubelet_node_name{{{KUBELET}}})"
)
_CPU = f'container_cpu_usage_seconds_total{{{CADVISOR}, image!=""}}[5m]'


def _recorded(name: str, expression: str, **labels: str) -> dict[str, Any]:
    return {"record": name, "expr": expression, **({"labels": labels} if labels else {})}


def _throttling(series: str, chosen: str) -> str:
    highest = f"topk by ({CONTAINER}, instance) (1, increase({series}{{{chosen}{CADVISOR}}}[5m]))"
    return f"sum without (id, metrics_path, name, image, endpoint, job, node) ({highest})"


def _quantile(quantile: str, series: str, by: str = "cluster, instance, le") -> str:
    return f"histogram_quantile({quantile}, sum(rate({series}_bucket{{{KUBELET}}}[5m])) by ({by}){{}})"


RECORDED: tuple[Mapping[str, Any], ...] = (
    *(
        _recorded(
            f"node_namespace_pod_container:container_cpu_usage_seconds_total:sum_{name}",
            f"sum by ({CONTAINER}) ({function}({_CPU})) {NODE_OF_POD}",
        )
        for name, function in (("rate5m", "rate"), ("irate", "irate"))
    ),
    *(
        _recorded(
            f"node_namespace_pod_container:container_memory_{name}",
            f'container_memory_{name}{{{CADVISOR}, image!=""}} {NODE_OF_POD}',
        )
        for name in ("working_set_bytes", "rss", "cache", "swap")
    ),
    *(
        _recorded(
            "node_quantile:kubelet_pleg_relist_duration_seconds:histogram_quantile",
            _quantile(quantile, "kubelet_pleg_relist_duration_seconds").replace("{}", f" {NODE_OF_KUBELET}"),
            quantile=quantile,
        )
        for quantile in ("0.99", "0.9", "0.5")
    ),
)

ASKED: tuple[str, ...] = (
    _throttling("container_cpu_cfs_throttled_periods_total", 'container!="", ')
    + f" / on ({CONTAINER}, instance) group_left "
    + _throttling("container_cpu_cfs_periods_total", ""),
    *(
        f"sum by ({POD}) (rate(container_network_{way}_{what}_total{{{CADVISOR}}}[5m]))"
        for way in ("receive", "transmit")
        for what in ("bytes", "packets", "packets_dropped")
    ),
    *(
        f"sum by ({CONTAINER}) (rate(container_fs_{what}_total"
        f'{{{CADVISOR}, container!="", device=~"{DISKS}"}}[5m]))'
        for what in ("reads", "writes", "reads_bytes", "writes_bytes")
    ),
    f"max by (cluster, instance) (kubelet_running_pods{{{KUBELET}}}) {NODE_OF_KUBELET}",
    f'sum(kubelet_running_containers{{{KUBELET}, container_state="running"}})',
    *(f"{series}{{{KUBELET}}}" for series in ("process_resident_memory_bytes", "process_cpu_seconds_total")),
    'container_cpu_usage_seconds_total{metrics_path="/metrics/resource"}',
    'min by (metrics_path) (up{job="kubelet"}) == 1',
)
