"""`kubengine cpus` and the page draw CPUs by node and cache."""

from __future__ import annotations

from engine.cli.cpus import cpu_map
from engine.server.page.rows import cpu_rows


def test_each_cpu_is_drawn_where_it_is() -> None:
    processors = [
        {"cpu": cpu, "core": cpu % 4, "cache": cpu % 4 // 2, "socket": 0, "node": cpu % 4 // 2}
        for cpu in range(8)
    ]
    answer = {
        "reserved": "0",
        "policy": "static",
        "shared": "0-1,4",
        "offline": "8-9",
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
        "   CPUs 8-9  offline",
        "a  CPUs 2,6  d/p  c",
        "b  CPUs 3,5,7  v  c",
    ]


def test_under_the_policy_none_all_cpus_are_shared() -> None:
    answer = {
        "policy": "none",
        "reserved": "",
        "shared": "0-1",
        "offline": "",
        "processors": [{"cpu": cpu, "core": cpu, "cache": 0, "socket": 0, "node": 0} for cpu in range(2)],
        "containers": [],
    }
    assert cpu_map(answer) == [
        "node 0  socket 0  cache 0  . .",
        "",
        ".  CPUs 0-1  all containers, because the CPU manager's policy is none",
    ]


def test_the_page_shows_each_cpu_with_its_location_and_use() -> None:
    state = {
        "policy": "static",
        "reserved": "0",
        "shared": "0-1,4-5",
        "offline": "8-9",
        "processors": [
            {"cpu": cpu, "core": cpu % 4, "cache": cpu % 4 // 2, "socket": 0, "node": cpu % 4 // 2}
            for cpu in range(8)
        ],
        "containers": [{"pod": "d/p", "podUID": "u", "container": "c", "cpus": "2-3,6-7"}],
    }
    assert cpu_rows(state) == {
        "node 0": {
            "node": 0,
            "caches": [
                {
                    "socket": 0,
                    "cache": 0,
                    "cores": [
                        [[0, "reserved", ""], [4, "shared", ""]],
                        [[1, "shared", ""], [5, "shared", ""]],
                    ],
                }
            ],
        },
        "node 1": {
            "node": 1,
            "caches": [
                {
                    "socket": 0,
                    "cache": 1,
                    "cores": [
                        [[2, "held", "d/p/c"], [6, "held", "d/p/c"]],
                        [[3, "held", "d/p/c"], [7, "held", "d/p/c"]],
                    ],
                }
            ],
        },
        "settings": {
            "policy": "static",
            "shared": "0-1,4-5",
            "reserved": "0",
            "offline": "8-9",
            "away": [8, 9],
        },
    }
