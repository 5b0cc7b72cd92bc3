"""Fail the n-th file operation, for every n: a pod's whole life (`walked_life`) with one fault in it, and the
pods are right.

Without `KUBENGINE_EVERY_FAULT` (`make chaos`) that is each place of the code that touches a file.
"""

from __future__ import annotations

import os

import pytest

from .faults import ERRORS, PARTIAL, FileFault, file_faults
from .walked_life import walk, with_file_fault

WHOLE = bool(os.environ.get("KUBENGINE_EVERY_FAULT"))


@pytest.mark.timeout(0 if WHOLE else 600)
async def test_any_file_operation_may_fail_once() -> None:
    with file_faults():
        seen = FileFault()
        assert not await with_file_fault(seen)
        operations = range(1, len(seen.places) + 1)
        if WHOLE:
            faults = [FileFault(at, error) for at in operations for error in (*ERRORS, PARTIAL)]
        else:
            first = {place: at for at, place in reversed(list(enumerate(seen.places, 1)))}
            faults = [
                FileFault(at, (*ERRORS, PARTIAL)[number % 5]) for number, at in enumerate(first.values())
            ]
        assert len(faults) > 50
        await walk(map(with_file_fault, faults))
