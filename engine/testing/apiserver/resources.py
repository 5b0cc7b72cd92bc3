"""Implement the API server's behaviour beyond storage: subresources, deletion, defaults."""

from __future__ import annotations

import copy
import secrets
from typing import Any

from engine.testing.apiserver.paths import ResourcePath
from engine.testing.apiserver.store import Object, ObjectStore, StoreError

OF_STATUS = ("status", "approval")
OF_SPEC = ("resize", "ephemeralcontainers")
FINAL_PHASES = ("Succeeded", "Failed")
DEFAULT_GRACE = 30


def create(store: ObjectStore, path: ResourcePath, value: Object) -> Object:
    value = copy.deepcopy(value)
    if path.resource == "pods":
        value["status"] = {"phase": "Pending"}
        spec = value.setdefault("spec", {})
        for field, default in POD_DEFAULTS.items():
            spec.setdefault(field, copy.deepcopy(default))
        value.setdefault("metadata", {})["generation"] = 1
    return store.create(path, value)


POD_DEFAULTS: dict[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": DEFAULT_GRACE,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}


def update(store: ObjectStore, path: ResourcePath, value: Object) -> Object:
    """Apply PUT and PATCH: through a subresource only its part changes, otherwise everything
    except the status.
    """
    before = store.get(path)
    if value.get("metadata", {}).get("name", path.name) != path.name:
        raise StoreError(400, "BadRequest", "the name of the object does not match the name on the URL")
    preconditions = {
        field: value["metadata"][field]
        for field in ("uid", "resourceVersion")
        if field in value.get("metadata", {})
    }
    after = dict(value)
    if path.subresource in OF_STATUS:
        after = {**before, "metadata": {**before["metadata"], **preconditions, **_marks(path, value)}}
        after |= {"status": value["status"]} if "status" in value else {}
    elif path.subresource in OF_SPEC:
        after = {**before, "metadata": {**before["metadata"], **preconditions}, "spec": value.get("spec", {})}
    elif "status" in before:
        after["status"] = before["status"]
    generation = before["metadata"].get("generation")
    if generation is not None:
        changed = after.get("spec") != before.get("spec")
        after["metadata"] = {**after.get("metadata", {}), "generation": generation + changed}
    return store.replace(path, after)


def _marks(path: ResourcePath, value: Object) -> Object:
    """Return the labels and annotations that a request to the status of a Node or Pod sets."""
    if path.resource not in ("nodes", "pods"):
        return {}
    metadata = value.get("metadata", {})
    return {field: metadata[field] for field in ("labels", "annotations") if field in metadata}


def delete(store: ObjectStore, path: ResourcePath, options: dict[str, Any]) -> Object:
    """Delete an object. Pods go in two steps, with their grace period; an object with finalizers waits for
    them.
    """
    known = store.get(path)
    wanted = options.get("preconditions") or {}
    store.demand(path, wanted.get("uid"), wanted.get("resourceVersion"))
    grace = _grace(known, options.get("gracePeriodSeconds")) if path.resource == "pods" else 0
    metadata = dict(known["metadata"])
    if not grace and not metadata.get("finalizers"):
        return store.remove(path)
    if metadata.get("deletionTimestamp") and grace >= metadata.get("deletionGracePeriodSeconds", 0):
        return known
    if not metadata.get("deletionTimestamp") and "generation" in metadata:
        metadata["generation"] += 1
    metadata |= {"deletionTimestamp": store.time(grace), "deletionGracePeriodSeconds": grace}
    return store.replace(path, {**known, "metadata": metadata})


def _grace(pod: Object, asked: int | None) -> int:
    """Return the seconds that a pod has to terminate; 0 for one that runs on no node or has ended."""
    spec = pod.get("spec", {})
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in FINAL_PHASES:
        return 0
    grace = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE) if asked is None else asked
    return int(grace) if grace >= 0 else 1


def act(store: ObjectStore, path: ResourcePath, value: Object) -> Object:
    """Handle a POST to a subresource: `binding` and `eviction` of a pod, `token` of a service account."""
    pod = ResourcePath(path.collection, path.resource, path.namespace, path.name, "")
    if path.subresource == "binding":
        known = store.get(pod)
        if known.get("spec", {}).get("nodeName"):
            raise StoreError(409, "Conflict", f"pod {path.name} is already assigned to node")
        store.replace(pod, {**known, "spec": {**known["spec"], "nodeName": value["target"]["name"]}})
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}
    if path.subresource == "eviction":
        delete(store, pod, value.get("deleteOptions") or {})
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}
    if path.subresource == "token" and path.resource == "serviceaccounts":
        seconds = value.get("spec", {}).get("expirationSeconds", 3600)
        status = {"token": f"token-{secrets.token_hex(16)}", "expirationTimestamp": store.time(seconds)}
        return {**value, "status": status}
    raise StoreError(404, "NotFound", "the server could not find the requested resource")
