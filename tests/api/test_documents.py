"""Manifests and configurations: what is refused, and that the refusal says where and what."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.documents import load_config, load_pods, parse_documents, parse_pods, read_text, yaml_text
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.validation import problems

POD = b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i%s}]}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(b"apiVersion: v1\nkind: Pod\nspec: {cont", "not valid YAML: line 4", id="truncated"),
        pytest.param(b"", "expected a Pod", id="empty"),
        pytest.param(b"\xff\xfe", "not UTF-8", id="binary"),
        pytest.param(b"- 1\n- 2\n", "expected an object, got list", id="list"),
        pytest.param(b'{"kind": "Pod",', "not valid JSON", id="truncated-json"),
        pytest.param(b"apiVersion: v1\nkind: Job\n", "kind: expected a v1 Pod, got v1 Job", id="other-kind"),
        pytest.param(POD % b", ports: x", "spec.containers[0].ports: Expected `array", id="wrong-type"),
        pytest.param(
            POD % b", ports: [{containerPort: no}]", "spec.containers[0].ports[0].containerPort", id="path"
        ),
        pytest.param(
            POD % b", resources: {limits: {cpu: 1x}}", "spec.containers[0].resources.limits", id="quantity"
        ),
        pytest.param(b"kind: List\napiVersion: v1\nitems: 3\n", "items: expected a list", id="bad-list"),
    ],
)
def test_an_error_in_a_manifest_names_the_field_and_the_file(text, says):
    with pytest.raises(InvalidInput) as caught:
        parse_pods(text, "pods/a.yaml")
    assert str(caught.value).startswith("pods/a.yaml: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


BOMB = b"a: &a [x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b", ".join([b"*%c" % (name - 1)] * 9)) for name in range(98, 108)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(b"[" * 100_000, "nested deeper than 100", id="flow"),
        pytest.param(b"- " * 100_000 + b"x", "nested deeper than 100", id="block"),
        pytest.param(b'{"a":' * 100_000, "not valid JSON", id="json"),
        pytest.param(BOMB, "after expanding its aliases", id="aliases"),
    ],
)
def test_hostile_documents_are_refused_and_not_fatal(text, says):
    with pytest.raises(InvalidInput, match=says):
        parse_pods(text, "a.yaml")


def test_unknown_pod_fields_are_warnings():
    pods, warnings = parse_pods(POD % b", lifecycl: {}, resources: {limit: {}}", "a.yaml")
    assert pods[0].metadata.name == "a"
    assert warnings == [
        "a.yaml: spec.containers[0].lifecycl: unknown field",
        "a.yaml: spec.containers[0].resources.limit: unknown field",
    ]


def test_lists_and_several_documents_are_opened():
    listed = b"apiVersion: v1\nkind: List\nitems:\n- " + (POD % b"").replace(b"\n", b"\n  ").rstrip() + b"\n"
    pods, _ = parse_pods(listed + b"---\n" + POD % b"", "a.yaml")
    assert len(pods) == 2


def test_a_missing_file_and_a_huge_one(tmp_path: Path):
    with pytest.raises(InvalidInput, match="No such file"):
        load_pods(tmp_path / "none.yaml")
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(InvalidInput, match="larger than"):
        load_pods(huge)


def test_files_without_a_size_are_read_to_their_end_within_the_limit():
    """A file of /proc and a device say that they have no bytes."""
    assert read_text(Path("/proc/filesystems")) == Path("/proc/filesystems").read_bytes() != b""
    with pytest.raises(InvalidInput, match="larger than"):
        read_text(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: KubeletConfiguration\nmaxPods: many\n", "maxPods: Expected `int`"),
        ("kind: KubeletConfiguration\nsyncFrequency: 10\n", "syncFrequency: expected a duration"),
        ("kind: KubengineConfiguration\npreemption: {polcy: x}\n", "preemption: "),
        ("kind: Pod\n", "expected KubeletConfiguration or KubengineConfiguration"),
    ],
)
def test_an_error_in_a_configuration_names_the_field_and_the_file(tmp_path: Path, text: str, says: str):
    file = tmp_path / "kubelet.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load_config([file])
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)


def test_configurations_may_share_a_file_or_not(tmp_path: Path):
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("kind: KubeletConfiguration\nimageGCHighThresholdPercent: 90\ncpuCFSQuotaPeriod: 50ms\n")
    two.write_text("kind: KubengineConfiguration\npreemption: {policy: minimal}\n")
    kubelet, kubengine = load_config([one, two])
    assert kubelet.image_gc_high_threshold_percent == 90
    assert kubelet.cpu_cfs_quota_period == 0.05
    assert kubengine.preemption.policy == "minimal"
    together = tmp_path / "both.yaml"
    together.write_text(f"{one.read_text()}---\n{two.read_text()}")
    assert load_config([together]) == (kubelet, kubengine)
    with pytest.raises(InvalidInput, match="a second KubeletConfiguration") as caught:
        load_config([one, two, together])
    assert str(caught.value).startswith(f"{together}: kind: ")
    assert str(one) in str(caught.value)
    assert load_config([])[1] == KubengineConfiguration()


@pytest.mark.parametrize(
    ("container", "says"),
    [
        (
            b", resources: {requests: {cpu: -1}}",
            "spec.containers[0].resources.requests.cpu: expected 0 or more",
        ),
        (b", resources: {requests: {cpu: 2}, limits: {cpu: 1}}", "is more than the limit 1"),
        (b", resources: {requests: {gpu: 1}}", "unknown resource"),
        (b", resources: {limits: {a.b/gpu: 500m}}", "expected a whole number"),
        (b", resources: {requests: {memory: 100E}}", "does not fit in 64 bits"),
        (b", volumeMounts: [{name: v, mountPath: /v}]", "there is no volume 'v'"),
        (b", imagePullPolicy: Sometimes", "expected Always, IfNotPresent or Never"),
        (b", livenessProbe: {}", "livenessProbe: expected exactly one handler"),
        (b", env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]", "needs an API server"),
        (b"}, {name: c, image: j", "'c' is already the name of another container"),
        (b"}], volumes: [{name: v, configMap: {name: m}}], x: [{", "a config map volume needs an API server"),
    ],
)
def test_pod_problems_name_their_field(container, says):
    pods, _ = parse_pods(POD % container, "a.yaml")
    found = list(problems(pods[0]))
    assert len(found) == 1, found
    assert says in found[0]


@pytest.mark.parametrize("text", [b"0", b"true", b"word", b"2.5", b"[1]", b"- 1", b"[[]]"])
def test_a_document_that_is_not_an_object_is_reported(text):
    with pytest.raises(InvalidInput, match=r"pods\.yaml"):
        parse_documents(text, "pods.yaml")


@pytest.mark.parametrize(
    "text", [POD % b"", b'{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"c","image":"i"}]}}']
)
def test_equal_texts_of_pods_are_one(text):
    """Thousands of pods of a node say mostly the same."""
    (one,), (other,) = (parse_pods(text, subject)[0] for subject in ("a", "b"))
    assert one.spec.containers[0].image is other.spec.containers[0].image
    assert one.spec.containers[0].name is other.spec.containers[0].name


FRAGMENTS = ["- ", "? ", ": ", "a: ", "a:", "\n", "\n ", "\n  ", "[", "]", "{", "}", ",", "b", "!t ", "&x ",
             "*x ", "\t", "-", "|", '"', "# ", "---\n", "-\t", "- - ", "\r", "\u2028", "\x85 "]  # fmt: skip


@settings(max_examples=500)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join))
def test_a_text_that_is_small_keeps_within_the_limits(text: str) -> None:
    """It is not scanned for them."""
    depth = deepest = nodes = 0
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            nodes += isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent | yaml.AliasEvent)
            deepest = max(deepest, depth)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(yaml_text, "MAX_DEPTH", deepest - 1)
            assert not yaml_text.is_small(text)
            patch.setattr(yaml_text, "MAX_DEPTH", 10_000)
            patch.setattr(yaml_text, "MAX_NODES", nodes - 1)
            assert not yaml_text.is_small(text)


def test_an_ordinary_manifest_is_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "parse")
    manifest = 'metadata: {name: a}\nspec:\n  containers:\n  - name: c\n    command: ["sh", "-c", "a && b"]\n'
    assert yaml_text.parse_yaml(manifest)[0]["metadata"] == {"name": "a"}
