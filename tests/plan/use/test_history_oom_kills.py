"""OOM kills in recorded use: each is counted in one step."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.plan import FaultLog
from tests.plan.use.made_up_use import END, MI, SCRAPED, collected, needs_prometheus, read
from tests.plan.use.recorded import Recording, prometheus


@needs_prometheus
@pytest.mark.parametrize("shift", [0, 20, 50])
def test_a_kill_between_the_scrapes_of_two_windows_is_counted_once(shift: int, tmp_path: Path) -> None:
    made, kills = Recording(), [END - hour * 3600 - 40 for hour in range(1, 5)]
    times = [at + shift for at in SCRAPED]
    for number in range(5):
        # Each container is killed at another place in a window.
        moments = [kill + 60 * number for kill in kills]
        amounts = [MI] * len(times), [0.1] * len(times)
        made.container(f"shop/killed-{number}", "app", times, *amounts, node="n1")
        labels = {"namespace": "shop", "pod": f"killed-{number}", "container": "app"}
        counts = [(at, float(sum(moment < at for moment in moments))) for at in times]
        made.add("container_oom_events_total", labels, counts)
    with prometheus(tmp_path, made) as address:
        history = collected(address, FaultLog())
    for number in range(5):
        assert (read(history, f"shop/killed-{number}", "ooms") > 0.5).sum() == len(kills)
