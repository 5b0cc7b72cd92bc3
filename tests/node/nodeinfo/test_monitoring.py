"""The dashboard and the rules in `package/monitoring`: series that nodes have, and alerts that are raised."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster_rig import Joined
from tests.node.node_series import shown_series
from tests.server.prometheus import needs_prometheus, promtool

FILES = Path(__file__).parents[3] / "package/monitoring"
FILLED = {"$__rate_interval": "5m", "$__range": "1h", "$instance": ".*", "$namespace": ".*"}
OF_PROMETHEUS = {"up", "ALERTS"}
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FILES / "rules.yml").read_text())["groups"] for rule in group["rules"]
]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
DASHBOARD: dict[str, Any] = json.loads((FILES / "dashboard.json").read_text())

Series = dict[str, tuple[str, str]]
"""Each with its values, a minute apart: those of trouble, and those of a node that is well."""

ALERTS: dict[str, Series] = {
    "KubengineDown": {'up{job="kubelet"}': ("0x30", "1x30")},
    "KubengineUnhealthy": {'kubernetes_healthcheck{name="ping"}': ("0x30", "1x30")},
    "KubengineTaskFails": {'kubengine_task_failures_total{task="t"}': ("0+1x30", "0x25 1x5")},
    "KubengineRuntimeSilent": {"kubelet_pleg_last_seen_seconds": ("0x30", "0+60x30")},
    "KubengineRuntimeErrors": {
        'kubelet_runtime_operations_errors_total{operation_type="a"}': ("0+2x30", "0+1x30"),
        'kubelet_runtime_operations_total{operation_type="a"}': ("0+10x30", "0+100x30"),
    },
    "KubengineRelistSlow": {
        'kubelet_pleg_relist_duration_seconds_bucket{le="10"}': ("0x30", "0+1x30"),
        'kubelet_pleg_relist_duration_seconds_bucket{le="20"}': ("0+1x30", "0+1x30"),
        'kubelet_pleg_relist_duration_seconds_bucket{le="+Inf"}': ("0+1x30", "0+1x30"),
    },
    "KubengineApiServerErrors": {
        'rest_client_requests_total{code="<error>"}': ("0+2x30", "0x30"),
        'rest_client_requests_total{code="404"}': ("0+1x30", "0+9x30"),
        'rest_client_requests_total{code="200"}': ("0+2x30", "0+1x30"),
    },
    "KubengineCertificateEnds": {
        "kubelet_certificate_manager_server_ttl_seconds": ("86000-60x30", "99000-60x30"),
        "kubelet_certificate_manager_client_ttl_seconds": ("Inf Inf", "Inf Inf"),
    },
    "KubengineCertificateNotRenewed": {
        "kubelet_certificate_manager_client_expiration_renew_errors": ("0+1x30", "0x30")
    },
    "KubengineCgroupsChanged": {"kubengine_cgroup_drift_total": ("0x20 1x10", "1x30")},
    "KubenginePodsStartSlowly": {
        'kubelet_pod_start_duration_seconds_bucket{le="60"}': ("0x30", "0+1x30"),
        'kubelet_pod_start_duration_seconds_bucket{le="120"}': ("0+1x30", "0+1x30"),
        'kubelet_pod_start_duration_seconds_bucket{le="+Inf"}': ("0+1x30", "0+1x30"),
    },
    "KubengineEvicts": {'kubelet_evictions{eviction_signal="memory.available"}': ("0x20 1x10", "1x30")},
    "KubengineProbesLate": {
        'kubengine_probe_lateness_seconds_bucket{le="1"}': ("0x30", "0+1x30"),
        'kubengine_probe_lateness_seconds_bucket{le="5"}': ("0+1x30", "0+1x30"),
        'kubengine_probe_lateness_seconds_bucket{le="+Inf"}': ("0+1x30", "0+1x30"),
    },
    "ContainerOutOfMemory": {'container_oom_events_total{container="c"}': ("0x22 1x8", "3x30")},
    "ContainerThrottled": {
        'container_cpu_cfs_throttled_periods_total{container="c"}': ("0+6x30", "0+4x30"),
        'container_cpu_cfs_periods_total{container="c"}': ("0+10x30", "0+10x30"),
    },
    "VolumeFillsUp": {
        "kubelet_volume_stats_available_bytes": ("9x30", "11x30"),
        "kubelet_volume_stats_capacity_bytes": ("100x30", "100x30"),
    },
}


def queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def filled(query: str) -> str:
    """Return a query with its variables replaced, as Grafana sends it."""
    for name, value in (
        ("$__rate_interval", "5m"),
        ("$__range", "1h"),
        ("$instance", ".*"),
        ("$namespace", ".*"),
    ):
        query = query.replace(name, value)
    return query


def series_in(query: str) -> set[str]:
    """Return the names of series in an expression: its words without labels, groupings, functions and
    operators.
    """
    bare = re.sub(r'"[^"]*"', '""', query)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    words = re.findall(r"[A-Za-z_:][\w:]*(?!\w|\s*\()", bare)
    return set(words) - {"and", "or", "unless", "bool", "offset", "by"}


def test_series_are_found_in_queries() -> None:
    query = 'topk(3, sum by (le) (rate(a_b{c="d_e"}[5m])) / on (x) group_left (y) (f:g > bool 0)) or -h_total'
    assert series_in(query) == {"a_b", "f:g", "h_total"}


def names_in(shown: dict[str, dict[str, str]]) -> set[str]:
    """Return the names of samples; a histogram has three."""
    known = set()
    for series in shown.values():
        for name, kind in series.items():
            parts = {f"{name}_{part}" for part in ("bucket", "sum", "count")}
            known |= parts if kind == "histogram" else {name}
    return known


async def test_every_series_that_is_asked_for_is_one_of_a_node(
    joined: Joined, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = names_in(await shown_series(joined, tmp_path / "cgroup", monkeypatch))
    variables = [each.get("definition", "") for each in DASHBOARD["templating"]["list"]]
    asked = [*queries(), *(rule["expr"] for rule in RULES)]
    unknown = {
        name: query for query in asked for name in series_in(filled(query)) - known - RECORDED - OF_PROMETHEUS
    }
    assert unknown == {}
    for variable in filter(None, variables):
        assert variable.removeprefix("label_values(").partition(",")[0] in known


def test_panels_are_apart_and_each_has_a_query() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or panel["targets"]
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)


def test_every_alert_is_tried() -> None:
    assert {rule["alert"] for rule in RULES if "alert" in rule} == ALERTS.keys()


RUNBOOK = "docs/how-to/runbook.md"


def test_every_alert_has_its_section_of_the_runbook() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    sections = re.split(r"^## ", (FILES.parents[1] / RUNBOOK).read_text(), flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == [rule["alert"] for rule in alerts]
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}#{rule['alert'].lower()}"
    for section in sections:
        parts = re.findall(r"^\*\*(\w+)\.\*\*", section, re.MULTILINE)
        assert parts == ["Meaning", "Impact", "Diagnosis", "Mitigation"], section
        assert re.search(r"^(\$ |kubectl )", section, re.MULTILINE), section


@needs_prometheus
async def test_promtool_takes_rules_scrapes_and_queries(tmp_path: Path) -> None:
    drawn = [{"record": f"drawn:query:{n}", "expr": filled(query)} for n, query in enumerate(queries())]
    (tmp_path / "drawn.yml").write_text(json.dumps({"groups": [{"name": "drawn", "rules": drawn}]}))
    for arguments in (
        ["rules", "--lint-fatal", str(FILES / "rules.yml")],
        ["rules", str(tmp_path / "drawn.yml")],
        ["config", "--syntax-only", str(FILES / "scrape.yml")],
    ):
        code, said = await promtool("check", *arguments)
        assert code == 0, said


@needs_prometheus
@pytest.mark.parametrize("well", [False, True], ids=["trouble", "well"])
async def test_alerts_are_raised_in_trouble_and_only_then(tmp_path: Path, well: bool) -> None:
    tests = [
        {
            "name": alert,
            "interval": "1m",
            "input_series": [
                {"series": labelled(name), "values": values[well]} for name, values in series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "30m",
                    "exp_samples": [] if well else [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
                }
            ],
        }
        for alert, series in ALERTS.items()
    ]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(FILES / "rules.yml")], "tests": tests}))
    code, said = await promtool("test", "rules", str(file))
    assert code == 0, said


def labelled(series: str) -> str:
    """Return `series` with the label `instance`, which all series of a node have."""
    name, _, rest = series.partition("{")
    return f'{name}{{instance="n1",{rest or "}"}'
