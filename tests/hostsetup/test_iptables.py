"""The chains that a kubelet makes, with the real iptables in a network namespace of the test's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from engine.host.tasks import Tasks
from engine.hostsetup import iptables
from engine.hostsetup.iptables import UtilChains
from tests.waiting import eventually

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("iptables") is None, reason="needs iptables"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace"),
]


@pytest.fixture
def inside() -> Iterator[list[str]]:
    """Yield the command prefix that enters a new network namespace. Skips if it has no iptables tables."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    enter = ["nsenter", "--net", "--target", str(holder.pid)]
    try:
        if subprocess.run([*enter, "iptables", "-S"], capture_output=True, check=False).returncode:
            pytest.skip("this kernel has no iptables tables in a new network namespace")
        yield enter
    finally:
        holder.kill()
        holder.communicate()


def rules(inside: list[str], table: str, command: str = "iptables") -> list[str]:
    done = subprocess.run([*inside, command, "-t", table, "-S"], capture_output=True, check=True, text=True)
    return done.stdout.splitlines()


def flush(inside: list[str]) -> None:
    for table in ("filter", "mangle", "nat"):
        for what in ("-F", "-X"):
            subprocess.run([*inside, "iptables", "-t", table, what], check=True)


async def test_the_chains_are_a_kubelets_and_come_back_after_a_flush(
    inside: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(iptables, "MONITOR_SECONDS", 0.2)
    chains = UtilChains([*inside, "iptables"], Tasks())
    await chains.start()
    try:
        await eventually(lambda: "-N KUBE-KUBELET-CANARY" in rules(inside, "filter"))
        assert "-N KUBE-IPTABLES-HINT" in rules(inside, "mangle")
        assert "-N KUBE-KUBELET-CANARY" in rules(inside, "mangle")
        assert "-N KUBE-KUBELET-CANARY" in rules(inside, "nat")
        kept = rules(inside, "filter")
        assert {"-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL"} <= set(kept)
        (drop,) = (rule for rule in kept if rule.startswith("-A KUBE-FIREWALL"))
        assert drop == (
            '-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet '
            'connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP'
        )
        flush(inside)
        await eventually(lambda: "-N KUBE-KUBELET-CANARY" in rules(inside, "filter"))
        assert "-N KUBE-IPTABLES-HINT" in rules(inside, "mangle")
        assert sorted(rules(inside, "filter")) == sorted(kept)
    finally:
        await chains.stop()


async def test_ipv6_has_the_hint_and_no_firewall(inside: list[str]):
    chains = UtilChains([*inside, "ip6tables"], Tasks(), ipv6=True)
    await chains.start()
    try:
        await eventually(lambda: "-N KUBE-KUBELET-CANARY" in rules(inside, "filter", "ip6tables"))
        assert "-N KUBE-IPTABLES-HINT" in rules(inside, "mangle", "ip6tables")
        assert "-N KUBE-FIREWALL" not in rules(inside, "filter", "ip6tables")
    finally:
        await chains.stop()


@pytest.mark.parametrize(
    "command", [["no-such-iptables"], ["false"], ["sh", "-c", "echo no tables >&2; exit 3"]]
)
async def test_a_machine_without_tables_is_reported_once(
    command: list[str], caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "kubengine.hostsetup")
    tasks = Tasks()
    chains = UtilChains(command, tasks)
    await chains.start()
    await eventually(lambda: bool(caplog.records))
    await asyncio.sleep(0.2)
    await chains.stop()
    assert len(caplog.records) == 1
    assert not any(trouble for _, trouble in tasks.health())
