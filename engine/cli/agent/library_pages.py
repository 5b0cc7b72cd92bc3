"""Unmap the pages of libraries that only start-up used.

A library's code and constants are mapped from its file, page by page, as they are used. Most of what an agent
maps serves its start: imports, relocations, the compilation of expressions. The kernel leaves such pages to
the process until memory is short. Without them, an agent at rest takes about 5 MB less. What is used again
comes back from the page cache, at the cost of a minor fault.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

_PT_LOAD, _PT_DYNAMIC = 1, 2
_PF_W = 2
_DT_NULL, _DT_TEXTREL, _DT_FLAGS = 0, 22, 30
_DF_TEXTREL = 4


class _Segment(ctypes.Structure):
    """Describe a segment: `Elf64_Phdr` of elf(5)."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("physical_address", ctypes.c_uint64),
        ("file_size", ctypes.c_uint64),
        ("memory_size", ctypes.c_uint64),
        ("alignment", ctypes.c_uint64),
    )


class _Tag(ctypes.Structure):
    """Describe an entry of the dynamic section: `Elf64_Dyn` of elf(5)."""

    _fields_ = (("tag", ctypes.c_int64), ("value", ctypes.c_uint64))


class _Library(ctypes.Structure):
    """Describe a loaded library: the first fields of `struct dl_phdr_info` of dl_iterate_phdr(3)."""

    _fields_ = (
        ("base", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("segment_count", ctypes.c_uint16),
    )


_Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)


def unmap_unused_library_pages() -> None:
    """Unmap all pages of code and constants; those still in use return as they are used.

    Only segments that no program may write lose pages, so that nothing but the contents of files is dropped.
    The loader's own list names them, because another thread may be loading a library, and the maps of the
    process show its segments as read-only before they are relocated.
    """
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return
    # PyDLL keeps the interpreter's lock: another thread that holds the loader's lock does not wait for it.
    libc = ctypes.PyDLL(None)
    libc.madvise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)

    def visit(library: Any, size: int, data: Any) -> int:
        for address, length in _constant_ranges(library.contents):
            # An error means that the range cannot lose pages, as that of the kernel's own library.
            libc.madvise(address, length, mmap.MADV_DONTNEED)
        return 0

    libc.dl_iterate_phdr(_Visit(visit), None)


def _constant_ranges(library: _Library) -> list[tuple[int, int]]:
    """Return the addresses and lengths, in bytes, of whole pages that a library never writes."""
    segments = library.segments[: library.segment_count]
    for segment in segments:
        if segment.kind == _PT_DYNAMIC and _relocates_code(library.base + segment.address):
            return []
    ranges = []
    for segment in segments:
        if segment.kind == _PT_LOAD and not segment.flags & _PF_W:
            first = (library.base + segment.address) & -mmap.PAGESIZE
            ranges.append((first, library.base + segment.address + segment.memory_size - first))
    return ranges


def _relocates_code(address: int) -> bool:
    """Return whether the loader writes into the code of a library whose dynamic section is at `address`."""
    tags = ctypes.cast(address, ctypes.POINTER(_Tag))
    index = 0
    while (tag := tags[index].tag) != _DT_NULL:
        if tag == _DT_TEXTREL or (tag == _DT_FLAGS and tags[index].value & _DF_TEXTREL):
            return True
        index += 1
    return False
