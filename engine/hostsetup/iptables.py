"""Maintains the iptables chains that a kubelet creates for other components (`makeIPTablesUtilChains`).

`KUBE-IPTABLES-HINT` in the mangle table shows CNI plugins and kube-proxy whether the machine uses legacy or
nft tables. `KUBE-FIREWALL` drops packets to 127.0.0.0/8 from other hosts (CVE-2020-8558).
`KUBE-KUBELET-CANARY` in three tables shows when the tables were flushed; then all chains are created again.

Source: kubelet v1.36 (`kubelet_network_linux.go`, `pkg/util/iptables`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from engine.api.errors import Refused
from engine.host.child import Printed, run_child, which
from engine.host.tasks import Tasks

HINT: Final = "KUBE-IPTABLES-HINT"
FIREWALL: Final = "KUBE-FIREWALL"
CANARY: Final = "KUBE-KUBELET-CANARY"
CANARY_TABLES: Final = ("mangle", "nat", "filter")
LOCALNET_RULE: Final = (
    *("-m", "comment", "--comment", "block incoming localnet connections"),
    *("--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8"),
    *("-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP"),
)
LOCK_SECONDS: Final = 5
CALL_SECONDS: Final = 30.0
MONITOR_SECONDS: Final = 60.0
FLUSH_SECONDS: Final = 5.0
FLUSH_POLL_SECONDS: Final = 0.1
STEP_SECONDS: Final = 10 * CALL_SECONDS
MOST_OUTPUT: Final = 64 * 1024
EXISTS_OR_ABSENT: Final = 1
"""The exit status of iptables if a chain to create exists, or a chain or rule to check does not."""

log = logging.getLogger("kubengine.hostsetup")


class Iptables:
    """Change the tables of one family, by command (`["iptables"]`).

    Every call raises `Refused` or `Unavailable`, naming the command, if it fails.
    """

    def __init__(self, command: Sequence[str], *, ipv6: bool) -> None:
        self.name = command[-1]
        # kube-proxy and CNI plugins use iptables as well, which locks its tables (xtables lock).
        self._command = [*command, "-w", str(LOCK_SECONDS)]
        self._ipv6 = ipv6

    async def usable(self) -> bool:
        """Return whether the kernel has this family's tables."""
        return await self._chain_exists("nat", "POSTROUTING")

    async def ensure_chains(self) -> None:
        """Create the hint, and for IPv4 the firewall chain with its rules, if they are missing."""
        await self._ensure_chain("mangle", HINT)
        if self._ipv6:
            return
        await self._ensure_chain("filter", FIREWALL)
        for chain in ("OUTPUT", "INPUT"):
            await self._ensure_rule("-I", "filter", chain, "-j", FIREWALL)
        await self._ensure_rule("-A", "filter", FIREWALL, *LOCALNET_RULE)

    async def ensure_canaries(self) -> None:
        for table in CANARY_TABLES:
            await self._ensure_chain(table, CANARY)

    async def canary_is_gone(self) -> bool:
        return not await self._chain_exists(CANARY_TABLES[0], CANARY)

    async def flush_is_over(self) -> None:
        """Wait up to 5 s until the other tables have lost their canaries too."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FLUSH_SECONDS
        while loop.time() < deadline:
            left = [table for table in CANARY_TABLES[1:] if await self._chain_exists(table, CANARY)]
            if not left:
                return
            await asyncio.sleep(FLUSH_POLL_SECONDS)

    async def _ensure_chain(self, table: str, chain: str) -> None:
        done = await self._run("-N", chain, "-t", table)
        self._accept(done, f"chain {chain} of table {table}")

    async def _ensure_rule(self, position: str, table: str, chain: str, *rule: str) -> None:
        what = f"rule of chain {chain} of table {table}"
        found = await self._run("-C", chain, "-t", table, *rule)
        # Checked first, since iptables adds the same rule once per call.
        if self._accept(found, what):
            return
        made = await self._run(position, chain, "-t", table, *rule)
        if made.code:
            raise Refused(f"{what}: {_errors(made)}", subject=self.name)

    async def _chain_exists(self, table: str, chain: str) -> bool:
        found = await self._run("-S", chain, "-t", table)
        return self._accept(found, f"chain {chain} of table {table}")

    def _accept(self, done: Printed, what: str) -> bool:
        """Return whether the command succeeded; raise unless it failed because a chain or rule exists or is
        missing.
        """
        if done.code not in (0, EXISTS_OR_ABSENT):
            raise Refused(f"{what}: {_errors(done)}", subject=self.name)
        return done.code == 0

    async def _run(self, *arguments: str) -> Printed:
        return await run_child(
            [*self._command, *arguments], seconds=CALL_SECONDS, most=MOST_OUTPUT, subject=self.name
        )


def _errors(done: Printed) -> str:
    return done.errors or f"exit code {done.code}"


class UtilChains:
    """Create the chains of one family and keep them until stopped.

    If the machine lacks iptables or its tables, this is logged once and nothing is kept.
    """

    def __init__(self, command: Sequence[str], tasks: Tasks, *, ipv6: bool = False) -> None:
        self._tables = Iptables(command, ipv6=ipv6)
        self._installed = which(command[0]) is not None
        self._task = tasks.task(f"{self._tables.name}-chains")
        self._canaries_made = False

    async def start(self) -> None:
        if self._installed:
            self._task.start(self._keep)
        else:
            log.info("%s is not installed; not creating chain %s", self._tables.name, HINT)

    async def stop(self) -> None:
        await self._task.stop()

    async def _keep(self) -> None:
        name = self._tables.name
        try:
            usable = await self._tables.usable()
            if usable:
                await self._tables.ensure_chains()
        except Refused as error:
            log.warning("chain %s could not be created: %s", HINT, error)
            return
        if not usable:
            log.info("%s finds no tables in this kernel; not creating chain %s", name, HINT)
            return
        while True:
            with self._task.step(STEP_SECONDS):
                await self._check()
            await asyncio.sleep(MONITOR_SECONDS)

    async def _check(self) -> None:
        """Check the chains once. Raises `Refused` if iptables fails; the task then retries after a pause."""
        if self._canaries_made:
            if not await self._tables.canary_is_gone():
                return
            # A firewall that reloads flushes table by table: chains that are made too early would be lost
            # again.
            await self._tables.flush_is_over()
            log.info("%s: the tables were flushed; creating the chains again", self._tables.name)
            await self._tables.ensure_chains()
        await self._tables.ensure_canaries()
        self._canaries_made = True
