"""`kubengine cpus` draws CPUs by node and cache."""

from __future__ import annotations

from engine.cli.cpus import cpu_map


def test_each_cpu_is_drawn_where_it_is() -> None:
    processors = [
        {"cpu": cpu, "core": cpu % 4, "cache": cpu % 4 // 2, "socket": 0, "node": cpu % 4 // 2}
        for cpu in range(8)
    ]
    answer = {
        "reserved": "0",
        "shared": "0-1,4",
        "processors": processors,
        "containers": [
            {"pod": "d/p", "podUID": "u", "container": "c", "cpus": "2,6"},
            {"pod": "", "podUID": "v", "container": "c", "cpus": "3,5,7"},
        ],
    }
    assert cpu_map(answer) == [
        "node 0  socket 0  cache 0  #. .b",
        "node 1  socket 0  cache 1  aa bb",
        "",
        "#  CPUs 0  reserved, and shared unless strict",
        ".  CPUs 0-1,4  all other containers",
        "a  CPUs 2,6  d/p  c",
        "b  CPUs 3,5,7  v  c",
    ]
