"""Read kube-burner's workload files: jobs, and the objects that each of their iterations creates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine.api.documents.yaml_text import parse_yaml
from engine.api.errors import InvalidInput
from engine.bench.burner_templates import Variables, render

_OWN_PODS: Final = frozenset({"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"})
"""Kinds that create `spec.replicas` pods."""


@dataclass(frozen=True, slots=True)
class ObjectTemplate:
    """Describe a template of a job: `replicas` objects in each iteration, with variables of its own."""

    path: Path
    text: str
    replicas: int
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BurnerJob:
    """Describe a job that creates objects: `qps` a second, after a `burst`.

    With `namespaced`, each `per_namespace` iterations have a namespace of their own.
    """

    name: str
    namespace: str
    iterations: int
    qps: float
    burst: int
    namespaced: bool
    per_namespace: int
    namespace_labels: Mapping[str, str]
    templates: tuple[ObjectTemplate, ...] = field(default=())

    def namespace_of(self, iteration: int) -> str:
        return f"{self.namespace}-{iteration // self.per_namespace}" if self.namespaced else self.namespace

    def namespaces(self) -> list[str]:
        return list(dict.fromkeys(map(self.namespace_of, range(self.iterations))))

    def objects(self, iteration: int) -> Iterator[dict[str, Any]]:
        """Return the objects of an iteration, in the file's order. Iterations count from 0, replicas from 1.

        Raises `InvalidInput` if a template does not render to objects.
        """
        for template in self.templates:
            for replica in range(1, template.replicas + 1):
                variables = {
                    **template.variables,
                    "JobName": self.name, "Iteration": iteration, "Replica": replica,
                }  # fmt: skip
                subject = str(template.path)
                found = _document(render(template.text, variables, subject=subject), subject)
                if not {"apiVersion", "kind", "metadata"} <= set(found):
                    raise InvalidInput("is not one Kubernetes object", subject=subject)
                yield found


def pods_of(value: Mapping[str, Any]) -> int:
    """Return the number of pods that an object stands for.

    Raises `InvalidInput` for a DaemonSet or a Job, whose number the object does not say.
    """
    kind = value["kind"]
    if kind in ("DaemonSet", "Job", "CronJob"):
        raise InvalidInput(f"the number of pods of a {kind} is not known", subject=value["metadata"]["name"])
    if kind in _OWN_PODS:
        replicas = (value.get("spec") or {}).get("replicas")
        return 1 if replicas is None else int(replicas)
    return int(kind == "Pod")


def variable(text: str) -> Any:
    """Return the value of a variable given as text: a YAML scalar, or the text of anything else.

    A structure stays text, since a workload file inserts it into its own YAML.
    """
    documents = parse_yaml(text)
    return documents[0] if documents and not isinstance(documents[0], (dict, list)) else text


def read_jobs(path: Path, variables: Variables) -> list[BurnerJob]:
    """Return the jobs of a workload file. Raises `InvalidInput` for what cannot be played exactly."""
    subject = str(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", subject=subject) from None
    document = _document(render(text, variables, subject=subject, strict=False), subject)
    jobs = document.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise InvalidInput("has no jobs", subject=subject)
    return [_job(path, job) for job in jobs]


def _document(text: str, subject: str) -> dict[str, Any]:
    documents = parse_yaml(text)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise InvalidInput("is not one YAML mapping", subject=subject)
    return documents[0]


def _job(path: Path, job: Any) -> BurnerJob:
    subject = str(path)
    if not isinstance(job, dict) or not job.get("name"):
        raise InvalidInput("a job has no name", subject=subject)
    kind, churn = job.get("jobType") or "create", job.get("churnConfig") or {}
    if kind != "create":
        raise InvalidInput(f"job {job['name']}: jobType {kind} is not played, only create", subject=subject)
    if any(churn.get(key) not in (None, 0, "0", "0s", "") for key in ("cycles", "duration")):
        raise InvalidInput(f"job {job['name']}: churn is not played", subject=subject)
    try:
        return BurnerJob(
            name=str(job["name"]),
            namespace=str(job.get("namespace") or job["name"]),
            iterations=int(job["jobIterations"]),
            qps=float(job["qps"]),
            burst=int(job["burst"]),
            namespaced=bool(job.get("namespacedIterations", True)),
            per_namespace=int(job.get("iterationsPerNamespace") or 1),
            namespace_labels={
                key: str(value).lower() if isinstance(value, bool) else str(value)
                for key, value in (job.get("namespaceLabels") or {}).items()
            },
            templates=tuple(_template(path.parent, each) for each in job.get("objects") or ()),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"job {job['name']}: jobIterations, qps or burst is no number ({error!r}); pass it with --var",
            subject=subject,
        ) from None


def _template(directory: Path, entry: Mapping[str, Any]) -> ObjectTemplate:
    path = directory / str(entry["objectTemplate"])
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", subject=str(path)) from None
    return ObjectTemplate(path, text, int(entry.get("replicas", 1)), entry.get("inputVars") or {})
