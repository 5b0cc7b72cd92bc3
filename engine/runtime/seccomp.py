"""Compile seccomp profiles into the kernel's filter programs with libseccomp.

A profile is the JSON document that container runtimes share (defaultAction, architectures, syscalls with
names, action, errnoRet, args, includes and excludes; OCI runtime specification, config-linux).
RuntimeDefault is a built-in list of forbidden system calls, far shorter than other runtimes' lists of
allowed ones.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from engine.api.errors import InvalidInput
from engine.host import safe_open as beneath
from engine.runtime.objects.failures import NoSuchObject, Unsupported
from engine.wire import cri_v1_pb2 as cri

MOST = 1 << 20
LIBRARY = "libseccomp.so.2"
ACTIONS = {
    "SCMP_ACT_KILL": 0x00000000, "SCMP_ACT_KILL_THREAD": 0x00000000, "SCMP_ACT_KILL_PROCESS": 0x80000000,
    "SCMP_ACT_TRAP": 0x00030000, "SCMP_ACT_ERRNO": 0x00050000, "SCMP_ACT_TRACE": 0x7FF00000,
    "SCMP_ACT_LOG": 0x7FFC0000, "SCMP_ACT_ALLOW": 0x7FFF0000,
}  # fmt: skip
WITH_ERRNO = ("SCMP_ACT_ERRNO", "SCMP_ACT_TRACE")
COMPARISONS = {
    "SCMP_CMP_NE": 1, "SCMP_CMP_LT": 2, "SCMP_CMP_LE": 3, "SCMP_CMP_EQ": 4, "SCMP_CMP_GE": 5,
    "SCMP_CMP_GT": 6, "SCMP_CMP_MASKED_EQ": 7,
}  # fmt: skip
FORBIDDEN = (
    "_sysctl", "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module",
    "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_kernel_syms",
    "get_mempolicy", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm",
    "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mbind", "migrate_pages",
    "mount", "mount_setattr", "move_mount", "move_pages", "nfsservctl", "open_by_handle_at", "open_tree",
    "perf_event_open", "pivot_root", "process_vm_readv", "process_vm_writev", "query_module", "quotactl",
    "quotactl_fd", "reboot", "request_key", "set_mempolicy", "setdomainname", "sethostname", "setns",
    "settimeofday", "stime", "swapoff", "swapon", "sysfs", "syslog", "umount", "umount2", "unshare",
    "uselib", "userfaultfd", "ustat", "vhangup", "vm86", "vm86old",
)  # fmt: skip
BY_CAPABILITY = {
    "SYS_ADMIN": (
        "bpf", "fanotify_init", "fsconfig", "fsmount", "fsopen", "fspick", "lookup_dcookie", "mount",
        "mount_setattr", "move_mount", "open_tree", "perf_event_open", "quotactl", "quotactl_fd",
        "setdomainname", "sethostname", "setns", "syslog", "umount", "umount2", "unshare",
    ),
    "DAC_READ_SEARCH": ("open_by_handle_at",),
    "SYS_BOOT": ("reboot", "kexec_load", "kexec_file_load"),
    "SYS_MODULE": ("delete_module", "init_module", "finit_module"),
    "SYS_PACCT": ("acct",),
    "SYS_PTRACE": ("kcmp", "process_vm_readv", "process_vm_writev"),
    "SYS_RAWIO": ("iopl", "ioperm"),
    "SYS_TIME": ("settimeofday", "stime", "clock_settime", "clock_adjtime"),
    "SYS_TTY_CONFIG": ("vhangup",),
    "SYS_NICE": ("get_mempolicy", "mbind", "set_mempolicy", "migrate_pages", "move_pages"),
    "SYSLOG": ("syslog",),
    "BPF": ("bpf",),
    "PERFMON": ("perf_event_open",),
}  # fmt: skip


def filter_program(
    security: cri.LinuxContainerSecurityContext | cri.LinuxSandboxSecurityContext,
    capabilities: Collection[str],
) -> bytes:
    """Return the filter program (`struct sock_filter`s) of a container or sandbox, empty for none.

    Raise NoSuchObject or InvalidInput about the profile's file, Unsupported if libseccomp is not installed.
    """
    if security.privileged or not security.HasField("seccomp"):
        return b""
    kinds = cri.SecurityProfile
    if security.seccomp.profile_type == kinds.Localhost:
        return _compiled_file(Path(security.seccomp.localhost_ref), capabilities)
    if security.seccomp.profile_type == kinds.RuntimeDefault:
        return compiled(default_profile(capabilities), capabilities)
    return b""


def sandbox_filter(security: cri.LinuxSandboxSecurityContext) -> bytes:
    """Return the filter program of the process that holds a pod's namespaces.

    It runs only this package's code, without privileges: RuntimeDefault without libseccomp is no reason to
    refuse the pod.
    """
    try:
        return filter_program(security, ())
    except Unsupported:
        if security.seccomp.profile_type == cri.SecurityProfile.RuntimeDefault:
            return b""
        raise


def _compiled_file(path: Path, capabilities: Collection[str]) -> bytes:
    try:
        return compiled(_read(path), capabilities)
    except NoSuchObject:
        raise
    except InvalidInput as error:
        raise InvalidInput(str(error), subject=f"seccomp profile {path}") from None
    except (TypeError, ValueError, AttributeError, ctypes.ArgumentError, OverflowError) as error:
        raise InvalidInput(f"is not a seccomp profile: {error}", subject=f"seccomp profile {path}") from None


def default_profile(capabilities: Collection[str]) -> dict[str, Any]:
    """Return RuntimeDefault: everything but FORBIDDEN, with the calls that a held capability allows again."""
    allowed = {name for capability in capabilities for name in BY_CAPABILITY.get(capability, ())}
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": sorted(set(FORBIDDEN) - allowed), "action": "SCMP_ACT_ERRNO"}],
    }


def compiled(profile: Mapping[str, Any], capabilities: Collection[str]) -> bytes:
    """Compile `profile` for this machine's architecture. Raise InvalidInput, Unsupported."""
    library = _library()
    default = _action(profile, "defaultAction", "defaultErrnoRet")
    context = library.seccomp_init(default)
    if not context:
        raise InvalidInput("libseccomp refuses it", subject=f"defaultAction {profile.get('defaultAction')!r}")
    try:
        for rule in profile.get("syscalls") or []:
            if _applies(rule, capabilities):
                _add(library, context, rule, default)
        with tempfile.TemporaryFile() as file:
            if library.seccomp_export_bpf(context, file.fileno()) < 0:
                raise InvalidInput("libseccomp can't export it", subject="seccomp profile")
            file.seek(0)
            return file.read()
    finally:
        library.seccomp_release(context)


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    ]


def _add(library: ctypes.CDLL, context: int, rule: Mapping[str, Any], default: int) -> None:
    action = _action(rule, "action", "errnoRet")
    if action == default:
        return  # libseccomp refuses rules that have no additional effect
    wanted = rule.get("args") or []
    comparisons = (_Comparison * len(wanted))()
    for place, argument in zip(comparisons, wanted, strict=True):
        operation = COMPARISONS.get(argument.get("op"))
        if operation is None:
            raise InvalidInput("unknown comparison", subject=f"op {argument.get('op')!r}")
        place.arg, place.op = argument.get("index", 0), operation
        place.datum_a, place.datum_b = argument.get("value", 0), argument.get("valueTwo", 0)
    for name in rule.get("names") or [rule.get("name", "")]:
        number = library.seccomp_syscall_resolve_name(str(name).encode())
        if number == -1:
            continue  # a call unknown to this kernel or library needs no rule
        result = library.seccomp_rule_add_array(context, action, number, len(wanted), comparisons)
        if result < 0 and -result != errno.EEXIST:
            raise InvalidInput(os.strerror(-result), subject=f"rule about {name}")


def _applies(rule: Mapping[str, Any], capabilities: Collection[str]) -> bool:
    held = {f"CAP_{name}" for name in capabilities}
    machine = {"x86_64": {"amd64", "x86", "x32"}, "aarch64": {"arm64", "arm"}}.get(os.uname().machine, set())
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    return (
        set(includes.get("caps") or []) <= held
        and (not includes.get("arches") or bool(machine & set(includes["arches"])))
        and not held & set(excludes.get("caps") or [])
        and not machine & set(excludes.get("arches") or [])
    )


def _action(source: Mapping[str, Any], key: str, errno_key: str) -> int:
    name = source.get(key)
    if not isinstance(name, str) or name not in ACTIONS:
        raise InvalidInput(f"expected one of {', '.join(ACTIONS)}", subject=f"{key} {name!r}")
    number = source.get(errno_key)
    return ACTIONS[name] | ((errno.EPERM if number is None else int(number)) if name in WITH_ERRNO else 0)


def _read(path: Path) -> dict[str, Any]:
    try:
        handle = os.open(path, beneath.HANDLE)
        try:
            text = beneath.read_handle(handle, str(path), MOST + 1)
        finally:
            os.close(handle)
        document = json.loads(text[:MOST])
    except FileNotFoundError:
        raise NoSuchObject("no such file", subject=f"seccomp profile {path}") from None
    except OSError as error:
        raise InvalidInput(error.strerror or str(error)) from None
    except RecursionError:
        raise InvalidInput("is too deep") from None
    if len(text) > MOST:
        raise InvalidInput(f"more than {MOST} bytes")
    if not isinstance(document, dict):
        raise InvalidInput("expected an object")
    return document


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        raise Unsupported(f"filters need {LIBRARY}, which is not installed", subject="seccomp") from None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p,
    ]  # fmt: skip
    return library
