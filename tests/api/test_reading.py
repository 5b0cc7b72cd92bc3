"""Manifests and values as the kubelet reads them, and hostile ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.api.documents import convert, parse_documents, parse_pods
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.api.validation import check_pod


def read(spec: str, container: str = "") -> Pod:
    head = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    image: i\n"
    text = head + container + spec
    (pod,), _ = parse_pods(text.encode(), "a.yaml")
    return pod


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("12:30:45", "12:30:45"),
        ("12:30", "12:30"),
        ("1.5:30", "1.5:30"),
        ("0o17", 15),
        ("017", 15),
        ("08", 8),
        ("0x1F", 31),
        ("0b11", 3),
        ("-0b11", -3),
        ("+5", 5),
        ("1_000", 1000),
        ("1.0", 1),
        ("1e3", 1000),
        (".5", 0.5),
        ("1.2.3", "1.2.3"),
        ("2001-12-14", "2001-12-14"),
        ("2001-12-14T21:59:43Z", "2001-12-14T21:59:43Z"),
        ("yes", True),
        ("Off", False),
        *((letter, letter in "yY") for letter in "yYnN"),
        *((letter, letter) for letter in "tTfFoO"),
        ("~", None),
        ("", None),
        ("Null", None),
        ("'1'", "1"),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 2.0**64),
        ("9" * 5000, "9" * 5000),
        ("1e" + "9" * 5000, "1e" + "9" * 5000),
    ],
)
def test_scalars(written: str, value: Any) -> None:
    (document,) = parse_documents(f"a: {written}\nb: 1\n".encode(), "a.yaml")
    assert document["a"] == value
    assert type(document["a"]) is type(value)


def test_keys_become_text_and_the_last_duplicate_wins() -> None:
    (document,) = parse_documents(b"1: a\nyes: b\n1.5: c\nx: 1\nx: 2\n'1': d\n", "a.yaml")
    assert document == {"1": "d", "true": "b", "1.5": "c", "x": 2}


def test_a_merge_key_yields_to_explicit_keys() -> None:
    (document,) = parse_documents(b"a: &a {x: 1, z: 1}\nb: {<<: *a, z: 2}\n", "a.yaml")
    assert document["b"] == {"x": 1, "z": 2}


def test_nulls_are_left_out() -> None:
    pod = read(
        "  hostname:\n  nodeSelector: null\n  terminationGracePeriodSeconds: null\n  hostNetwork: ~\n",
        "    command: [null]\n    env:\n    resources: {limits: null, requests: {cpu: null}}\n",
    )
    assert (pod.spec.hostname, pod.spec.host_network) == ("", False)
    assert pod.spec.containers[0].command == [""]
    assert pod.spec.containers[0].requests == {"cpu": Quantity.parse("0")}
    labels, _ = parse_pods(b"apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {x: null}}\n", "a.yaml")
    assert labels[0].metadata.labels == {"x": ""}


def test_a_whole_number_may_have_a_point() -> None:
    probe = "    readinessProbe: {exec: {command: [x]}, periodSeconds: 1.0, timeoutSeconds: 1e1}\n"
    read_probe = read("", probe).spec.containers[0].readiness_probe
    assert read_probe is not None
    assert (read_probe.period_seconds, read_probe.timeout_seconds) == (1, 10)
    with pytest.raises(InvalidInput, match="periodSeconds: Expected `int`"):
        read("", probe.replace("1.0", "1.5"))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("  securityContext: {runAsUser: 1" + "0" * 30 + "}\n", "runAsUser: Expected `int"),
        ("  securityContext: {runAsUser: 9223372036854775808}\n", "runAsUser: a number exceeds 64 bits"),
        ("  securityContext: {runAsUser: " + "9" * 5000 + "}\n", "runAsUser: Expected `int"),
        ('  hostname: "a\\0b"\n', "spec.hostname: holds a NUL character"),
        ('  volumes: [{name: v, hostPath: {path: "/a\\0"}}]\n', "hostPath.path: holds a NUL character"),
        ("  nodeSelector: {? [1] : a}\n", "a key is"),
        ("  overhead: {cpu: " + "9" * 5000 + "}\n", "is not"),
        ("  overhead: {cpu: '" + "9" * 5000 + "'}\n", "is not valid"),
    ],
)
def test_an_oversized_amount_is_one_clear_error(spec: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        read(spec)
    assert len(str(caught.value)) < 300


def test_deep_json_is_refused_and_not_a_crash() -> None:
    for levels in (150, 600, 100_000):
        text = b'{"apiVersion": "v1", "kind": "Pod", "x": ' + b"[" * levels + b"]" * levels + b"}"
        with pytest.raises(InvalidInput):
            parse_pods(text, "a.json")


@pytest.mark.parametrize(
    "text",
    [
        "9" * 5000,
        "9" * 5000 + "x",
        "." * 5000,
        "1s" * 5000,
        "9" * 100 + "h",
        "1" * 64,
        "-",
        "",
        "1",
        "s",
        "1s ",
    ],
)
def test_an_invalid_duration_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a duration"):
        Duration.parse(text)


def test_durations() -> None:
    assert Duration.parse("1h15m30.5s") == 4530.5
    assert Duration.parse("1.h.5m") == 3630
    assert Duration.parse("-0") == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (10, "10s"), (80, "1m20s"), (300, "5m0s"), (3600, "1h0m0s"), (0.5, "500ms"), (1.25, "1.25s")],
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    assert str(Duration(seconds)) == text


def test_plain_data_is_fitted_however_it_is_typed() -> None:
    class Thing(msgspec.Struct):
        amounts: dict[str, int | None] | None = None
        ratio: float = 0.5
        port: int | str = 0

    fitted = convert({"amounts": {"a": None}, "ratio": 2, "port": None}, Thing, "x")
    assert fitted == Thing({"a": 0}, 2.0, 0)
    assert type(fitted.ratio) is float
    with pytest.raises(InvalidInput, match="port"):
        convert({"port": 80.0}, Thing, "x")


@pytest.mark.parametrize("path", ["''", "../x", "/a/../b"])
def test_an_error_of_a_host_path_names_the_path(path: str) -> None:
    """An empty path would mount the host's root."""
    with pytest.raises(InvalidInput, match=r"hostPath.path: expected a path"):
        check_pod(read(f"  volumes: [{{name: v, hostPath: {{path: {path}}}}}]\n"), "test")


@pytest.mark.parametrize("name", ["y", "Y", "n", "N", "yes", "No", "on", "OFF"])
def test_a_name_that_yaml_takes_for_a_boolean_is_refused_unless_quoted(name: str) -> None:
    manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: i}]}\n"
    with pytest.raises(InvalidInput, match=r"metadata.name"):
        parse_pods((manifest % name).encode(), "a.yaml")
    ((pod,), _) = parse_pods((manifest % f'"{name}"').encode(), "a.yaml")
    assert pod.metadata.name == name
