"""Pods and the objects that they name, as users create them, and the events and states that the server
shows."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from engine.cluster.client import ApiError
from tests.cluster.control_plane import Object, Plane
from tests.waiting import PATIENCE, eventually

NAMESPACE = "/api/v1/namespaces/default"


async def make(plane: Plane, kind: str, name: str, **fields: Any) -> Object:
    """Create an object and return it; delete one that an earlier test left."""
    try:
        await plane.admin.delete(f"{NAMESPACE}/{kind}/{name}", {"gracePeriodSeconds": 0})
    except ApiError as error:
        if error.code != 404:
            raise
    return await plane.admin.create(f"{NAMESPACE}/{kind}", {"metadata": {"name": name}, **fields}, Object)


async def run(plane: Plane, name: str, spec: Object, **metadata: Any) -> None:
    """Create a pod of the node. Retry while the server refuses it because it does not know its service
    account yet."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                named = {"name": name, **metadata}
                await make(plane, "pods", name, metadata=named, spec={"nodeName": "n1", **spec})
                return
            except ApiError as error:
                if error.code != 403:
                    raise
                await asyncio.sleep(0.1)


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def gone(plane: Plane, name: str) -> None:
    """Delete the pod and wait until the server no longer lists it."""

    async def missing() -> bool:
        listed = await plane.admin.get(f"{NAMESPACE}/pods", Object)
        return all(pod["metadata"]["name"] != name for pod in listed["items"])

    await plane.admin.delete(f"{NAMESPACE}/pods/{name}", {"gracePeriodSeconds": 1})
    await eventually(missing)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def mounting(source: Object, **spec: Any) -> Object:
    """Return the spec of a pod that mounts the volume `source` at /v."""
    container = {"name": "c", "image": "busybox:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    return {"containers": [container], "volumes": [{"name": "v", **source}], **spec}


def waiting(pod: Object) -> Object:
    """Return the waiting state of the pod's first container, or {}."""
    states = [each["state"] for each in pod.get("status", {}).get("containerStatuses", ())]
    found: Object = states[0].get("waiting", {}) if states else {}
    return found


async def wait_for_event(plane: Plane, pod: str, text: str, *more: str) -> None:
    """Wait for an event of the pod with this message or, with `more`, with one that begins with `text` and
    contains each of `more`."""

    def matches(message: str) -> bool:
        if not more:
            return message == text
        return message.startswith(text) and all(each in message for each in more)

    async def is_listed() -> bool:
        events = (await plane.admin.get(f"{NAMESPACE}/events", Object))["items"]
        return any(each["involvedObject"]["name"] == pod and matches(each["message"]) for each in events)

    await eventually(is_listed)
