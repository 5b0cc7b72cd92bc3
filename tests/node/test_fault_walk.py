"""Fail the n-th file operation, for every n: an agent's whole life (`walked_life`) with one fault in it, and
the pods are right.

Without `KUBENGINE_EVERY_FAULT` (`make chaos`) that is each place of the code that touches a file.
"""

from __future__ import annotations

import pytest

from tests.node.faults import ERRORS, PARTIAL, WHOLE, FileFault, file_faults, first_of_each
from tests.node.walked_life import LoneLife
from tests.node.walking import places_of, walk, with_file_fault


@pytest.mark.timeout(0 if WHOLE else 600)
async def test_any_file_operation_may_fail_once() -> None:
    with file_faults():
        places = await places_of(LoneLife)
        if WHOLE:
            kinds = (*ERRORS, PARTIAL)
            faults = [FileFault(at, error) for at in range(1, len(places) + 1) for error in kinds]
        else:
            faults = first_of_each(places)
        assert len(faults) > 50
        await walk(with_file_fault(fault, LoneLife) for fault in faults)
