"""The kustomize base and the image recipe agree with the commands and files that they use."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import Any

import click
import pytest
import yaml

from engine.api.version import engine_version
from engine.cli import COMMANDS, _kubengine
from tests.project.shown import ROOT

BASE = ROOT / "package/kubectl"
RECIPE = ROOT / "package/container/Containerfile"


def objects() -> list[dict[str, Any]]:
    """Return the objects of the base, as kustomize lists them."""
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return [each for name in listed for each in yaml.safe_load_all((BASE / name).read_text())]


def one(kind: str) -> dict[str, Any]:
    (found,) = (each for each in objects() if each["kind"] == kind)
    return found


def test_the_job_asks_a_question_that_exists_with_options_that_exist() -> None:
    pod = one("CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["kubectl-kubengine"]
    assert "plan" in COMMANDS
    plan = _kubengine.get_command(click.Context(_kubengine), "plan")
    assert isinstance(plan, click.Group)
    name, *options = container["args"]
    question = plan.get_command(click.Context(plan), name)
    assert question is not None
    question.make_parser(click.Context(question)).parse_args(options)  # refuses an unknown option


def test_the_jobs_account_has_the_planners_role() -> None:
    pod = one("CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    account, binding = one("ServiceAccount")["metadata"], one("ClusterRoleBinding")
    assert pod["serviceAccountName"] == account["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert binding["roleRef"]["name"] == one("ClusterRole")["metadata"]["name"]


def test_the_image_has_this_version() -> None:
    (image,) = yaml.safe_load((BASE / "kustomization.yaml").read_text())["images"]
    assert image["newTag"] == engine_version()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl on the PATH")
def test_kustomize_builds_the_base() -> None:
    built = subprocess.run(["kubectl", "kustomize", str(BASE)], capture_output=True, text=True, check=True)
    kinds = sorted(each["kind"] for each in yaml.safe_load_all(built.stdout))
    assert kinds == sorted(each["kind"] for each in objects())
    assert f"image: registry.example.org/kubengine:{engine_version()}" in built.stdout


def test_the_recipe_copies_files_that_a_build_has() -> None:
    lines = RECIPE.read_text().splitlines()
    (copied,) = (shlex.split(line)[1:-1] for line in lines if line.startswith("COPY "))
    assert [name for name in copied if not name.startswith("dist/") and not (ROOT / name).is_file()] == []
    (base,) = (line for line in lines if line.startswith("FROM "))
    assert "python:3.11" in base
    assert "dist/kubengine-*-cp311-*.whl" in copied
