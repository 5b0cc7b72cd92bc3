"""Logs in to and out of iSCSI targets with iscsiadm, in the kubelet's order of commands.

Secrets are passed as arguments, because iscsiadm accepts them in no other way. They never appear in a message
or a log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from engine.api.errors import KubengineError, Refused
from engine.host.child import Printed
from engine.intree.commands import run, words
from engine.intree.iscsi_disk import (
    DISCOVERY_KEYS,
    SESSION_KEYS,
    IscsiDisk,
    credentials,
    interface_settings,
    transport_of,
)

SECONDS: Final = 180.0
"""More than the 120 seconds for which iscsiadm tries to log in by default."""
_NO_SESSION, _SESSION_EXISTS, _NO_OBJECTS = 2, 15, 21

log = logging.getLogger("kubengine.volumes")


async def transport(disk: IscsiDisk) -> str:
    """Return the transport of the interface, which is created first if the volume has an initiator name.

    Raises `Refused` or `InvalidInput`.
    """
    shown = await _iscsiadm("iface", "-I", disk.base_interface, "-o", "show")
    if shown.code:
        raise Refused(f"could not read iface {disk.base_interface}: {_why(shown)}")
    printed = shown.out.decode(errors="replace")
    if disk.initiator:
        await _copy_interface(disk, printed)
    found = transport_of(printed)
    if not found:
        raise Refused(f"could not parse iface file for {disk.interface}: it names no transport")
    return found


async def _copy_interface(disk: IscsiDisk, shown: str) -> None:
    settings = interface_settings(shown, disk.initiator)
    made = await _iscsiadm("iface", "-I", disk.interface, "-o", "new")
    if made.code not in (0, _SESSION_EXISTS):
        raise Refused(f"failed to create new iface {disk.interface}: {_why(made)}")
    for name, value in settings.items():
        done = await _iscsiadm("iface", "-I", disk.interface, "-o", "update", "-n", name, "-v", value)
        if done.code:
            await delete_interface(disk)
            raise Refused(f"failed to update iface {disk.interface}, {name}: {_why(done)}")


async def delete_interface(disk: IscsiDisk) -> None:
    """Delete an interface that was created for the volume; others stay."""
    if disk.interface != disk.base_interface:
        await _iscsiadm("iface", "-I", disk.interface, "-o", "delete")


async def log_in(
    disk: IscsiDisk, portal: str, secret: Mapping[str, bytes], *, discovery_chap: bool, session_chap: bool
) -> None:
    """Discover the target at a portal and log in. Raises `Refused`."""
    discovery = ("discoverydb", "-t", "sendtargets", "-p", portal, "-I", disk.interface)
    await _iscsiadm(*discovery, "-o", "new")
    if discovery_chap:
        await _set(discovery, "discovery.sendtargets.auth.authmethod", "CHAP", "discoverydb")
        for name, value in credentials(secret, DISCOVERY_KEYS).items():
            await _set(discovery, name, value, "discoverydb")
    discovered = await _iscsiadm(*discovery, "--discover")
    if discovered.code:
        await _iscsiadm(*discovery, "-o", "delete")
        raise Refused(f"failed to sendtargets to portal {portal}: {_why(discovered)}")
    node = ("node", "-p", portal, "-T", disk.iqn, "-I", disk.interface)
    try:
        # Without this setting a session attaches all LUNs of the target, including those of other nodes.
        await _set(node, "node.session.scan", "manual", "node")
    except Refused as error:
        log.warning("iscsi: all LUNs of %s will be visible: %s", disk.iqn, error)
    if session_chap:
        await _set(node, "node.session.auth.authmethod", "CHAP", "node")
        for name, value in credentials(secret, SESSION_KEYS).items():
            await _set(node, name, value, "node")
    logged_in = await _iscsiadm(*node, "--login")
    if logged_in.code not in (0, _SESSION_EXISTS):
        await _iscsiadm(*node, "-o", "delete")
        raise Refused(f"failed to attach disk: {_why(logged_in)}")
    try:
        # Otherwise the machine logs in at its next boot, and waits for a target that may be gone.
        await _set(("node", "-p", portal, "-T", disk.iqn), "node.startup", "manual", "node")
    except Refused as error:
        log.warning("iscsi: the next boot will log in to %s: %s", disk.iqn, error)


async def log_out(disk: IscsiDisk) -> None:
    """Log out of the target at all portals, and delete the records of the sessions. Raises `Refused`."""
    for portal in disk.portals:
        node = ("node", "-p", portal, "-T", disk.iqn)
        for doing in (("--logout",), ("-o", "delete")):
            done = await _iscsiadm(*node, *doing, "-I", disk.interface)
            if done.code not in (0, _NO_SESSION, _NO_OBJECTS):
                raise Refused(
                    f"failed to detach disk {disk.target}, iscsiadm {' '.join(doing)}: {_why(done)}"
                )
    if disk.initiator:
        await delete_interface(disk)


async def flush_multipath(device: str) -> None:
    """Remove an unused multipath device; a failure is logged."""
    try:
        done = await run(["multipath", "-f", device], SECONDS)
    except KubengineError as error:
        log.warning("multipath device %s is not removed: %s", device, error)
        return
    if done.code:
        log.warning("multipath device %s is not removed: %s", device, words(done))


async def _set(record: tuple[str, ...], name: str, value: str, kind: str) -> None:
    """Change one setting of a record. The value may be a secret. Raises `Refused`."""
    done = await _iscsiadm(*record, "-o", "update", "-n", name, "-v", value)
    if done.code:
        raise Refused(f"failed to update {kind} key {name}: {_why(done)}")


async def _iscsiadm(mode: str, *arguments: str) -> Printed:
    return await run(["iscsiadm", "-m", mode, *arguments], SECONDS)


def _why(done: Printed) -> str:
    return f"{words(done)} (exit status {done.code})"
