"""Image GC against the kubelet's recorded runs, with the kernel and with its twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine._fast.ranking import _image_order_c, _image_order_py
from engine.api.errors import InvalidInput, Refused
from engine.images import records as records_module
from engine.images import selection
from engine.images.collection import Collection, FilesystemReading, KeptImage
from engine.images.policy import ImageGCPolicy
from engine.images.records import ImageRecords, SeenImage
from engine.images.report import ImageGCFailure, ImageGCReport
from engine.tables import NEVER
from tests.conformance.changed import INSUFFICIENT

EPOCH = 1_000_000_000


@pytest.fixture(params=[_image_order_c, _image_order_py], ids=["kernel", "twin"])
def order(request, monkeypatch):
    monkeypatch.setattr(selection, "order_and_cut", request.param.order_and_cut)
    monkeypatch.setattr(records_module, "mark", request.param.mark)
    monkeypatch.setattr(records_module, "match", request.param.match)


class Scenario:
    """Replay one recorded case: the images and containers that the runtime lists, and removals that fail."""

    def __init__(self, case: dict[str, Any]) -> None:
        policy = case["policy"]
        self.policy = ImageGCPolicy(policy["high"], policy["low"], policy["min_age_s"], policy["max_age_s"])
        self.records = ImageRecords(by_handler=case["runtime_class_in_image_cri_api"])
        self.now = EPOCH
        self.images: list[dict[str, Any]] = []
        self.containers: list[dict[str, Any]] = []
        self.step: dict[str, Any] = {}

    async def filesystem(self) -> FilesystemReading:
        if self.step.get("fs_error"):
            raise Refused("image fs stats failed")
        fs = self.step["fs"]
        return FilesystemReading(fs["capacity"], fs["available"])

    async def remove(self, images: Sequence[SeenImage], became: list[KeptImage | None]) -> None:
        for image in images:
            if image.id in self.step.get("fail_remove", ()):
                became.append(KeptImage(f"cannot remove {image.id}"))
            else:
                self.images = [i for i in self.images if i["id"] != image.id]
                became.append(None)

    def protected(self, _image: SeenImage) -> str:
        return ""

    def detect(self) -> set[str]:
        for field, kind in (("list_images_error", "list_images"), ("get_pods_error", "get_pods")):
            if self.step.get(field):
                message = {"list_images": "list images failed", "get_pods": "get pods failed"}[kind]
                raise ImageGCFailure(kind, message)
        images = [
            SeenImage(i["id"], i["size"], i["pinned"], i.get("runtime_handler", "")) for i in self.images
        ]
        used = [self.records.used_key(c["image_id"], c.get("runtime_handler", "")) for c in self.containers]
        self.records.detect(images, used, self.now)
        return set(used)

    async def run(self, step: dict[str, Any]) -> dict[str, Any]:
        self.step = step
        self.now += step["advance_s"]
        self.images, self.containers = list(step["images"]), list(step["containers"])
        report = ImageGCReport(self.now, step["action"])
        got: dict[str, Any] = {"error": None, "error_kind": None}
        try:
            in_use = self.detect()
            if step["action"] == "detect":
                got["in_use"] = sorted(in_use)
            collection = Collection(self.records, self.policy, self, report)
            if step["action"] == "gc":
                await collection.garbage_collect(EPOCH + step["began_gc_s"])
            elif step["action"] == "delete_unused":
                await collection.delete_unused()
        except ImageGCFailure as failure:
            got |= {"error": str(failure), "error_kind": failure.kind}
        got["attempted"] = report.attempted
        got["removed"] = report.removed
        got["freed"] = report.freed + report.freed_by_age
        ids = [i["id"] for i in step["images"]]
        if len(set(ids)) < len(ids):  # the recorder's runtime dropped an id under every handler at once
            got["freed"] = sum(i["size"] for i in step["images"]) - sum(i["size"] for i in self.images)
        got["records"] = {key: self.record(key) for key in list(self.records.keys())}
        return got

    def record(self, key: str) -> dict[str, Any]:
        columns, row = self.records.table.columns, self.records.row(key)
        used = columns.last_used[row]
        return {
            "first_detected_s": columns.first_detected[row] - EPOCH,
            "last_used_s": None if used == NEVER else used - EPOCH,
            "size": columns.size[row],
            "pinned": columns.pinned[row],
        }


@pytest.mark.usefixtures("order")
async def test_image_gc(vectors):
    for number, case in enumerate(vectors("image_gc")):
        if case["policy_error"]:
            with pytest.raises(InvalidInput) as refused:
                Scenario(case)
            assert refused.value.message == case["policy_error"], number
            continue
        scenario = Scenario(case)
        for index, step in enumerate(case["steps"]):
            want, got = step["result"], await scenario.run(step)
            if want["order"] == "any":
                for field in ("attempted", "removed"):
                    got[field] = sorted(got[field])
            if want["error_kind"] == "insufficient":
                assert got.pop("error").startswith(INSUFFICIENT), (number, index, step)
            elif want["error"] is None:
                got["error"] = None
            expected = {field: want[field] for field in got}
            if "in_use" in expected:
                expected["in_use"] = sorted(expected["in_use"])
            assert got == expected, (number, index, step)
