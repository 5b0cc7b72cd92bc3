"""Faults of a node's cgroups: found, explained, put right."""

from __future__ import annotations

from pathlib import Path

import pytest
from cgroup_scenes import best_effort, burstable, guaranteed, make_container, managed, new_manager, put

from engine.api.errors import InvalidInput
from engine.cgroups.formulas import checks
from engine.cgroups.formulas.checks import PodObservation, RootObservation
from engine.cgroups.formulas.runtime_formula import formula_of
from engine.cgroups.interface_files import CPU_SHARE
from engine.testing.uml import run_in_uml


def pod(shares: list[int], weights: list[int]) -> PodObservation:
    return PodObservation("/kubepods/podx", shares, weights)


def test_the_containers_formula_shows_in_their_weights():
    assert checks.container_formula([pod([1024, 102], [39, 4, 1])]) == "linear"
    assert checks.container_formula([pod([1024, 102], [100, 17, 1])]) == "logarithmic"
    assert checks.container_formula([pod([2, 262144], [1, 10000])]) is None
    assert checks.container_formula([]) is None


def test_pods_and_containers_by_different_formulas():
    found = checks.formula_mismatch([pod([1024], [100, 1])], "linear", "/kubepods")
    assert found is not None
    finding, theirs = found
    assert (finding.kind, finding.fixable, theirs) == ("weight-formula", True, "logarithmic")
    assert "131216" in finding.meaning
    assert checks.formula_mismatch([pod([1024], [39, 1])], "linear", "/kubepods") is None


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("runc version 1.1.5\ncommit: x", "linear"),
        ("runc version 1.3.1", "linear"),
        ("runc version 1.3.2", "logarithmic"),
        ("runc version 1.4.0-rc.1", "logarithmic"),
        ("crun version 1.22", "linear"),
        ("crun version 1.23\ncommit", "logarithmic"),
        ("crun version 2", None),
        ("youki version 0.3.0", None),
    ],
)
def test_the_formula_follows_the_runtimes_version(text, formula):
    assert formula_of(text) == formula


def root(**changes) -> RootObservation:
    given = {
        "path": "/kubepods.slice",
        "version": 2,
        "weight": 2500,
        "neighbours": {"/system.slice": 100, "/user.slice": 100},
        "cpus": 64.0,
        "reserved_cpus": 32.0,
        "quota_cpus": None,
        "enforced_groups": (),
    }
    return RootObservation(**(given | changes))


def test_a_starved_host_is_found():
    finding = checks.host_starved(root())
    assert finding is not None
    assert "leave the host 4.74 of 64 CPUs (reserved: 32.00)" in finding.meaning
    assert "125409" in finding.meaning
    assert checks.host_starved(root(reserved_cpus=0.0)) is not None, "kernel threads get 3.8 %"


@pytest.mark.parametrize(
    "changes",
    [{"quota_cpus": 32.0}, {"weight": 100, "reserved_cpus": 10.0}, {"neighbours": {}}, {"weight": 0}],
)
def test_a_host_that_is_not_starved(changes):
    assert checks.host_starved(root(**changes)) is None


def test_reservations_that_nothing_holds():
    (finding,) = checks.reservation_not_held(root(), [])
    assert finding.kind == "reservation-not-held"
    assert "129811" in finding.meaning
    assert checks.reservation_not_held(root(quota_cpus=32.0), []) == []
    assert checks.reservation_not_held(root(enforced_groups=["system-reserved"]), []) == []
    assert checks.reservation_not_held(root(reserved_cpus=0.0), []) == []


def test_reservations_that_do_not_add_up():
    findings = checks.reservation_not_held(root(reserved_cpus=0.0), ["memory"])
    assert [(f.kind, f.path) for f in findings] == [("over-reserved", "memory")]


@pytest.mark.root
async def test_changed_files_and_lost_groups_are_found_and_put_right(private_root):
    with managed(private_root) as manager:
        manager.create_pod(guaranteed("g", "500m"))
        manager.create_pod(best_effort("e"))
        assert {f.kind for f in manager.check()} <= {"host-starved", "reservation-not-held"}
        share = CPU_SHARE[manager.mounts.version]
        group = manager.tree.group((*manager.settings.root, "podg"))
        put(f"{group.directory(share).path}/{share}", "77")
        gone = manager.tree.group((*manager.settings.root, "besteffort", "pode"))
        for hierarchy in manager.mounts.hierarchies:
            Path(hierarchy.path + gone.path).rmdir()
        stranger = manager.tree.make((*manager.settings.root, "burstable", "podstranger"))
        manager.tree.forget(stranger.name)

        found = {f["kind"]: f for f in await manager.act("check", {})}
        assert found["changed-file"]["path"].endswith(f"/kubepods/podg/{share}")
        assert "holds '77' instead of" in found["changed-file"]["meaning"]
        assert found["missing-group"]["path"].endswith("/besteffort/pode")
        assert found["orphan-group"]["path"].endswith("/podstranger")
        assert not found["orphan-group"]["fixable"]

        fixed = {f["kind"]: f["fixed"] for f in await manager.act("check", {"fix": "1"})}
        assert fixed["changed-file"]
        assert fixed["missing-group"]
        assert not fixed["orphan-group"]
        left = {f.kind for f in manager.check()} - {"host-starved", "reservation-not-held"}
        assert left == {"orphan-group"}
        with pytest.raises(InvalidInput, match="paint: expected check"):
            await manager.act("paint", {})


@pytest.mark.root
def test_inspecting_another_agents_node_writes_nothing(private_root):
    pods = [guaranteed("g", "500m"), burstable("b", "1")]
    with managed(private_root) as manager:
        for one in pods:
            manager.create_pod(one)
        observer = new_manager(private_root)
        observer.adopt(pods)
        assert {f.kind for f in observer.check(pods)} <= {"host-starved", "reservation-not-held"}
        assert observer.tree.writes == 0
        other = new_manager(private_root, kube_reserved={"cpu": "1"})
        other.adopt(pods)
        assert "changed-file" in {f.kind for f in other.check(pods)}
        observer.stop()
        other.stop()


def weight_fault(root: str) -> dict[str, object]:
    """Return how a check repairs weights when the runtime uses the newer formula and the agent the older
    (v2)."""
    with managed(root, cpu_weight="linear") as manager:
        one = burstable("b", "1")
        manager.create_pod(one)
        container = make_container(manager, one)
        manager.tree.write_files(container, {"cpu.weight": "100"})
        manager.tree.forget(container)
        before = manager.tree.read((*manager.settings.root, "burstable", "podb"), "cpu.weight")
        fixed = [f.as_dict() for f in manager.check(fix=True) if f.kind == "weight-formula"]
        levels = [
            manager.tree.read(name, "cpu.weight")
            for name in ((*manager.settings.root, "burstable", "podb"), (*manager.settings.root, "burstable"))
        ]
        left = [f.kind for f in manager.check()]
    return {"before": before, "fixed": fixed[0]["fixed"], "levels": levels, "left": left}


@pytest.mark.uml
@pytest.mark.slow
def test_pods_follow_their_containers_formula_on_a_real_kernel(private_root):
    seen = run_in_uml(
        f"""
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_checks
        report(test_checks.weight_fault({private_root!r}))
        """
    )
    assert seen["before"] == "39"
    assert seen["fixed"]
    assert seen["levels"] == ["100", "100"]
    assert "weight-formula" not in seen["left"]
