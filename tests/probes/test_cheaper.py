"""Which probe without a command checks the same as a command."""

from __future__ import annotations

import pytest

from engine.probes.cheaper import cheaper


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (
            ["curl", "-fsS", "http://localhost:8080/healthz"],
            'httpGet, port 8080, path /healthz, "network": "pod"',
        ),
        (["sh", "-c", "curl -sf -o /dev/null 127.0.0.1/a?b=c"], ""),
        (["sh", "-c", "curl -sf -o /dev/null 127.0.0.1/a"], 'httpGet, port 80, path /a, "network": "pod"'),
        (["sh", "-c", "wget -q -T 2 --spider http://[::1]:81 || exit 1"], ""),
        (
            ["sh", "-c", "wget -q -T 2 --spider http://localhost:81 || exit 1"],
            'httpGet, port 81, path /, "network": "pod"',
        ),
        (
            ["/usr/bin/curl", "-k", "--fail", "https://localhost"],
            'httpGet, port 443, path /, scheme HTTPS, "network": "pod"',
        ),
        (["curl", "-s", "http://localhost/any-answer-will-do"], ""),
        (["curl", "-f", "http://other.example/"], ""),
        (["curl", "-f", "http://user:secret@localhost/"], ""),
        (["curl", "-f", "-X", "POST", "http://localhost/"], ""),
        (["curl", "-f", "http://localhost:99999/"], ""),
        (["sh", "-c", "curl -f http://localhost/ | grep -q ok"], ""),
        (["sh", "-c", "curl -f 'http://localhost/"], ""),
        (["sh", "-c", "curl -f http://localhost/$PATH"], ""),
        (["sh", "/probe.sh"], ""),
        (
            ["/bin/grpc_health_probe", "-addr=:9090", "-service", "web", "-tls", "-tls-no-verify"],
            'grpc, port 9090, service web, "network": "pod", "tls": true',
        ),
        (["grpc_health_probe", "-addr", "localhost:9090"], 'grpc, port 9090, "network": "pod"'),
        (["grpc_health_probe", "-addr=localhost:9090", "-tls", "-tls-client-cert=/c"], ""),
        (["grpc_health_probe", "-addr=unix:///run/x.sock"], ""),
        (["nc", "-z", "-w", "1", "localhost", "6379"], 'tcpSocket, port 6379, "network": "pod"'),
        (["nc", "-zv", "db", "5432"], ""),
        (["nc", "-zu", "localhost", "53"], ""),
        (["cat", "/tmp/healthy"], ""),
        ([], ""),
        ([""], ""),
    ],
)
def test_which_probes_are_named(command: list[str], named: str):
    assert cheaper(command) == named
