"""The kustomize bases and the image recipe agree with the commands and files that they use."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from engine.api.version import engine_version
from engine.cli import COMMANDS, _kubengine
from tests.cluster.control_plane import ControlPlane
from tests.project.shown import ROOT

BINARIES = Path(os.environ.get("KUBE_BIN", "/nonexistent"))
SEARCHED = f"{BINARIES}:{os.environ.get('PATH', os.defpath)}"
KUBECTL = shutil.which("kubectl", path=SEARCHED)
BASE = ROOT / "package/kubectl"
SHADOW = BASE / "shadow"
RECIPE = ROOT / "package/container/Containerfile"


def objects(base: Path) -> list[dict[str, Any]]:
    """Return the objects of a base, as kustomize lists them, without those that it generates."""
    listed = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    return [each for name in listed for each in yaml.safe_load_all((base / name).read_text())]


def object_of_kind(base: Path, kind: str) -> dict[str, Any]:
    (found,) = (each for each in objects(base) if each["kind"] == kind)
    return found


def planner_pod() -> dict[str, Any]:
    spec: dict[str, Any] = object_of_kind(BASE, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return spec


def shadow_pod() -> dict[str, Any]:
    spec: dict[str, Any] = object_of_kind(SHADOW, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def test_the_job_asks_a_question_that_exists_with_options_that_exist() -> None:
    (container,) = planner_pod()["containers"]
    assert container["command"] == ["kubectl-kubengine"]
    assert "plan" in COMMANDS
    plan = _kubengine.get_command(click.Context(_kubengine), "plan")
    assert isinstance(plan, click.Group)
    name, *options = container["args"]
    question = plan.get_command(click.Context(plan), name)
    assert question is not None
    question.make_parser(click.Context(question)).parse_args(options)  # refuses an unknown option


def test_the_shadow_has_options_that_exist_and_files_that_are_mounted() -> None:
    (container,) = shadow_pod()["containers"]
    name, *options = container["args"]
    assert name == "shadow"
    command = _kubengine.get_command(click.Context(_kubengine), name)
    assert command is not None
    command.make_parser(click.Context(command)).parse_args(list(options))
    mounted = [each["mountPath"] for each in container["volumeMounts"]]
    mounted.append("/var/run/secrets/kubernetes.io/serviceaccount")
    named = yaml.safe_load((SHADOW / "kubeconfig.yaml").read_text())
    paths = [
        value.partition("=")[2].removeprefix("unix://")
        for value in options
        if "=/" in value or "=unix" in value
    ]
    paths += [
        named["clusters"][0]["cluster"]["certificate-authority"],
        named["users"][0]["user"]["tokenFile"],
    ]
    assert len(paths) == 6
    assert [path for path in paths if not any(path.startswith(f"{mount}/") for mount in mounted)] == []


def test_the_shadow_can_only_read_the_node() -> None:
    pod = shadow_pod()
    (container,) = pod["containers"]
    of_node = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
    assert len(of_node) == 3
    assert all(each["readOnly"] for each in container["volumeMounts"] if each["name"] in of_node)
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    (rule,) = object_of_kind(SHADOW, "ClusterRole")["rules"]
    assert rule["verbs"] == ["get"]


BOTH = [(BASE, planner_pod()), (SHADOW, shadow_pod())]


@pytest.mark.parametrize(("base", "pod"), BOTH, ids=["planner", "shadow"])
def test_the_account_has_its_role(base: Path, pod: dict[str, Any]) -> None:
    account, binding = (
        object_of_kind(base, "ServiceAccount")["metadata"],
        object_of_kind(base, "ClusterRoleBinding"),
    )
    assert pod["serviceAccountName"] == account["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert binding["roleRef"]["name"] == object_of_kind(base, "ClusterRole")["metadata"]["name"]


@pytest.mark.parametrize("base", [BASE, SHADOW], ids=["planner", "shadow"])
def test_the_image_has_this_version(base: Path) -> None:
    (image,) = yaml.safe_load((base / "kustomization.yaml").read_text())["images"]
    assert image["newTag"] == engine_version()


@pytest.mark.skipif(KUBECTL is None, reason="needs kubectl on the PATH or in KUBE_BIN")
@pytest.mark.parametrize("base", [BASE, SHADOW], ids=["planner", "shadow"])
def test_kustomize_builds_the_base(base: Path) -> None:
    built = subprocess.run([str(KUBECTL), "kustomize", str(base)], capture_output=True, text=True, check=True)
    kinds = {each["kind"] for each in yaml.safe_load_all(built.stdout)}
    assert kinds - {"ConfigMap"} == {each["kind"] for each in objects(base)}
    assert f"image: registry.example.org/kubengine:{engine_version()}" in built.stdout


@pytest.mark.root
@pytest.mark.skipif(
    not (BINARIES / "kube-apiserver").is_file() or shutil.which("etcd", path=SEARCHED) is None,
    reason="needs KUBE_BIN, a folder with kube-apiserver and kubectl, and etcd there or on the PATH",
)
def test_an_api_server_accepts_both_bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", SEARCHED)
    with ControlPlane(tmp_path, BINARIES) as plane:
        for base in (BASE, SHADOW):
            kubectl = [str(BINARIES / "kubectl"), f"--kubeconfig={plane.admin}"]
            subprocess.run([*kubectl, "apply", "-f", str(base / "namespace.yaml")], check=True)
            done = subprocess.run(
                [*kubectl, "apply", "--dry-run=server", "-k", str(base)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert "Warning" not in done.stderr, (
                "a field is unknown or deprecated, or pod security is violated"
            )
            assert done.stdout.count("server dry run") >= len(objects(base))


def test_the_recipe_copies_files_that_a_build_has() -> None:
    lines = RECIPE.read_text().splitlines()
    (copied,) = (shlex.split(line)[1:-1] for line in lines if line.startswith("COPY "))
    assert [name for name in copied if not name.startswith("dist/") and not (ROOT / name).is_file()] == []
    (base,) = (line for line in lines if line.startswith("FROM "))
    assert "python:3.11" in base
    assert "dist/kubengine-*-cp311-manylinux_*.whl" in copied
