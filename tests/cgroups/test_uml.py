"""The cgroup v2 kernel that tests boot: answers, failures, silence."""

from __future__ import annotations

import pytest

from engine.api.errors import Refused
from engine.testing.uml import run_in_uml

pytestmark = [pytest.mark.uml, pytest.mark.slow]


def test_the_report_of_the_body_is_returned():
    answer = run_in_uml(
        """
        print("noise")
        report(os.getpid())
        report({"controllers": open(CGROUPS + "/cgroup.controllers").read().split(), "uid": os.getuid()})
        """
    )
    assert {"cpu", "memory", "pids"} <= set(answer["controllers"])
    assert answer["uid"] == 0


def test_a_failing_body_shows_its_traceback():
    with pytest.raises(Refused, match="ValueError: on purpose"):
        run_in_uml("raise ValueError('on purpose')")


def test_a_silent_body_is_a_failure():
    with pytest.raises(Refused, match="the body failed"):
        run_in_uml("pass")


def test_a_body_that_never_ends_is_ended():
    with pytest.raises(Refused, match="no answer in 4 s"):
        run_in_uml("while True: pass", timeout=4)


def test_its_own_clock_jumps_over_idle_time():
    """Both clocks pass two hours, and a deadline holds; without jumps the host's timeout ends it."""
    seen = run_in_uml(
        """
        import subprocess, time
        before, wall = time.monotonic(), time.time()
        ended = subprocess.run(["timeout", "7200", "sleep", "14400"]).returncode
        report([ended, time.monotonic() - before >= 7200, time.time() - wall >= 7200])
        """,
        own_clock=True,
    )
    assert seen == [124, True, True]
