"""Parses the annotations by which a pod sets cgroup files that Kubernetes has no field for. Pure.

| annotation | value | what it does | kernel |
|---|---|---|---|
| `kubengine.dev/cpu-burst` | `0%` to `100%` | unused CPU quota is saved up, to this part of it | v1, v2 |
| `kubengine.dev/oom-group` | `process`, `container`, `pod` | who dies together when memory runs out | v2 |
| `kubengine.dev/swap` | a quantity or `max` | how much the pod, and each container, may swap out | v2 |
| `kubengine.dev/io-weight` | 1 to 10000 | its share of a disk that is busy | v2 |
| `kubengine.dev/io-max` | `DEVICE rbps=… wbps=… riops=… wiops=…; …` | limits per disk | v2 |

Only those count that `cgroups.podAnnotations` names. Sources: the kernel's cgroup-v2.rst and sched-bwc.rst.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cgroups.formulas import file_names

PREFIX: Final = "kubengine.dev/"
CPU_BURST, OOM_GROUP, SWAP = "cpu-burst", "oom-group", "swap"
IO_WEIGHT, IO_MAX = "io-weight", "io-max"
NAMES: Final = (CPU_BURST, OOM_GROUP, SWAP, IO_WEIGHT, IO_MAX)
PROCESS, CONTAINER, POD = "process", "container", "pod"
IO_KEYS: Final = ("rbps", "wbps", "riops", "wiops")
UNLIMITED: Final = "max"

FILES: Final = {
    1: {CPU_BURST: file_names.CPU_BURST[1]},
    2: {
        CPU_BURST: file_names.CPU_BURST[2],
        OOM_GROUP: file_names.MEMORY_OOM_GROUP,
        SWAP: file_names.MEMORY_SWAP_MAX,
        IO_WEIGHT: file_names.IO_WEIGHT,
        IO_MAX: file_names.IO_MAX,
    },
}
"""By cgroup version, the file that an annotation determines."""

DeviceNumber = Callable[[str], str]
"""Converts `/dev/sda` to the kernel's `8:0`."""

_PERCENT = re.compile(r"(\d{1,3})%", re.ASCII)
_NUMBER = re.compile(r"\d{1,7}:\d{1,7}", re.ASCII)


class PodAnnotations(msgspec.Struct, frozen=True):
    """Hold the parsed annotations: `cpu_burst` in percent of the quota, `swap` in bytes or `max`, `io_max` as
    kernel lines.
    """

    cpu_burst: int = 0
    oom_group: str = ""
    swap: str = ""
    io_weight: int = 0
    io_max: tuple[str, ...] = ()

    def burst(self, quota: int | None) -> int:
        """Return how many microseconds a cgroup with this quota may save up; 0 without a limit."""
        return max(quota or 0, 0) * self.cpu_burst // 100

    def pod_files(self) -> dict[str, str]:
        """Return the cgroup v2 files of the pod's own cgroup."""
        files = {}
        if self.oom_group == POD:
            files[file_names.MEMORY_OOM_GROUP] = "1"
        if self.swap:
            files[file_names.MEMORY_SWAP_MAX] = self.swap
        if self.io_weight:
            files[file_names.IO_WEIGHT] = f"default {self.io_weight}"
        if self.io_max:
            files[file_names.IO_MAX] = "\n".join(self.io_max)
        return files

    def container_files(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the cgroup v2 files of a container that has these values by the node's rules."""
        files = dict(given)
        if self.oom_group == PROCESS:
            files.pop(file_names.MEMORY_OOM_GROUP, None)
        elif self.oom_group:
            files[file_names.MEMORY_OOM_GROUP] = "1"
        if self.swap:
            files[file_names.MEMORY_SWAP_MAX] = self.swap
        return files


NONE: Final = PodAnnotations()


def as_written(path: str) -> str:
    """Return the path of a device unchanged; the `DeviceNumber` for callers without the node's devices."""
    return path


def asked(pod: Pod, allowed: Collection[str]) -> dict[str, str]:
    """Return the enabled annotations, by name without the prefix."""
    given = pod.annotations
    return {name: given[PREFIX + name] for name in NAMES if name in allowed and PREFIX + name in given}


def read_annotations(pod: Pod, allowed: Collection[str], device_number: DeviceNumber) -> PodAnnotations:
    """Parse the annotations. Raises `InvalidInput` naming the annotation."""
    texts = asked(pod, allowed) if allowed else {}
    if not texts:
        return NONE
    return PodAnnotations(
        cpu_burst=_percent(texts[CPU_BURST]) if CPU_BURST in texts else 0,
        oom_group=_choice(texts[OOM_GROUP]) if OOM_GROUP in texts else "",
        swap=_amount(SWAP, texts[SWAP]) if SWAP in texts else "",
        io_weight=_weight(texts[IO_WEIGHT]) if IO_WEIGHT in texts else 0,
        io_max=_limits(texts[IO_MAX], device_number) if IO_MAX in texts else (),
    )


def check_allowed(allowed: Collection[str], *, cgroup_v2: bool) -> None:
    """Check the enabled annotations. Raises `InvalidInput` for an unknown name or one that this kernel does
    not support.
    """
    for name in allowed:
        if name not in NAMES:
            raise InvalidInput(f"{name!r} is not one of {', '.join(NAMES)}", subject="cgroups.podAnnotations")
        if not cgroup_v2 and name not in FILES[1]:
            raise InvalidInput(f"{name} needs cgroup v2", subject="cgroups.podAnnotations")


def _wrong(name: str, expected: str, text: str) -> InvalidInput:
    return InvalidInput(f"expected {expected}, got {text!r}", subject=PREFIX + name)


def _percent(text: str) -> int:
    match = _PERCENT.fullmatch(text.strip())
    if match is None or int(match[1]) > 100:
        raise _wrong(CPU_BURST, "0% to 100%", text)
    return int(match[1])


def _choice(text: str) -> str:
    if text not in (PROCESS, CONTAINER, POD):
        raise _wrong(OOM_GROUP, f"{PROCESS}, {CONTAINER} or {POD}", text)
    return text


def _weight(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 10_000:
        raise _wrong(IO_WEIGHT, "1 to 10000", text)
    return int(text)


def _amount(name: str, text: str) -> str:
    """Parse a number of bytes or operations, or `max`."""
    if text == UNLIMITED:
        return text
    try:
        amount = Quantity.parse(text).value
    except InvalidInput:
        amount = -1
    if amount < 0:
        raise _wrong(name, "an amount such as 64Mi, or max", text)
    return str(amount)


def _limits(text: str, device_number: DeviceNumber) -> tuple[str, ...]:
    """Return a line for each disk, with all four keys in the kernel's order, sorted."""
    lines: dict[str, str] = {}
    for part in text.replace("\n", ";").split(";"):
        words = part.split()
        if not words:
            continue
        device = words[0] if _NUMBER.fullmatch(words[0]) else device_number(words[0])
        given: dict[str, str] = {}
        for word in words[1:]:
            key, equals, amount = word.partition("=")
            if not equals or key not in IO_KEYS or key in given:
                raise _wrong(IO_MAX, f"each of {', '.join(IO_KEYS)} at most once, as in rbps=10Mi", word)
            given[key] = _amount(IO_MAX, amount)
            if given[key] == "0":
                raise _wrong(IO_MAX, "an amount above 0", word)
        if not given or device in lines:
            raise _wrong(IO_MAX, "each device once, with its limits", part.strip())
        lines[device] = " ".join([device, *(f"{key}={given.get(key, UNLIMITED)}" for key in IO_KEYS)])
    if not lines:
        raise _wrong(IO_MAX, "a device and its limits", text)
    return tuple(sorted(lines.values()))
