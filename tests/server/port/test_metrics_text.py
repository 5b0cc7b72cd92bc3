"""The text of `/metrics`."""

from __future__ import annotations

from engine.metrics import Registry
from engine.server.metrics_text import exposition


def test_a_histogram_without_labels_shows_zeros_before_it_observes_anything() -> None:
    registry = Registry()
    plain = registry.histogram("plain", "Plain.", buckets=(1, 2))
    registry.histogram("labelled", "Labelled.", ("name",), (1, 2))
    assert "".join(exposition(registry)).splitlines() == [
        "# HELP labelled Labelled.",
        "# TYPE labelled histogram",
        "# HELP plain Plain.",
        "# TYPE plain histogram",
        'plain_bucket{le="1"} 0',
        'plain_bucket{le="2"} 0',
        'plain_bucket{le="+Inf"} 0',
        "plain_sum 0",
        "plain_count 0",
    ]
    plain.observe(1.5)
    assert "".join(exposition(registry, prefix="plain")).splitlines()[2:] == [
        'plain_bucket{le="1"} 0',
        'plain_bucket{le="2"} 1',
        'plain_bucket{le="+Inf"} 1',
        "plain_sum 1.5",
        "plain_count 1",
    ]
