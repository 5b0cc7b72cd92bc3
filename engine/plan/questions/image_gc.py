"""Compute what image garbage collection would free on every node, and which images it would remove.

The agent's own rules decide (`engine.images.policy`, `engine.images.selection`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ImagesSection
from engine.images import selection
from engine.images.policy import ImageGCPolicy
from engine.plan.answers.answer import Answer, Rows
from engine.plan.questions.configuration import NodeConfigurations
from engine.plan.questions.image_columns import image_columns, image_slice
from engine.plan.reading.image_uses import image_uses
from engine.plan.snapshot.columns import Snapshot
from engine.tables import ImageColumns

DAY = 86400.0
"""Seconds within which a use of a removed image is reported."""


class ImageGCParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of image-gc. Ages are in seconds; with None, the setting of the node applies."""

    high: Annotated[int | None, Meta(description="imageGCHighThresholdPercent")] = None
    low: Annotated[int | None, Meta(description="imageGCLowThresholdPercent")] = None
    min_age: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="imageMinimumGCAge in seconds")
    ] = None
    max_age: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="imageMaximumGCAge in seconds, 0 = off")
    ] = None
    order: Annotated[str, Meta(description="lru (the kubelet's), largest-first or size-aware")] = "lru"
    usage_percent: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None,
        Meta(description="assume that the image file system is this full"),
    ] = None
    capacity: Annotated[
        Annotated[int, Meta(gt=0)] | None, Meta(description="bytes of the image file system, where unknown")
    ] = None
    history: Annotated[
        str, Meta(description="CSV or Parquet of image uses: image, used_at and maybe node")
    ] = ""
    config: Annotated[str, Meta(description="a KubeletConfiguration for every node")] = ""
    changes: Annotated[dict[str, Any], Meta(description="fields laid over the configuration")] = {}
    images: Annotated[bool, Meta(description="one row per removed image, not only per node")] = True

    def __post_init__(self) -> None:
        """Raise `InvalidInput` with the agent's message for thresholds and orders that an agent refuses."""
        try:
            ImageGCPolicy(
                100 if self.high is None else self.high,
                0 if self.low is None else self.low,
                order=self.order,
            )
        except InvalidInput as error:
            at = {"High": "high", "LowT": "low"}.get(error.message.removeprefix("invalid ")[:4], "order")
            raise InvalidInput(error.message, subject=at) from None


def image_gc(snapshot: Snapshot, parameters: ImageGCParameters) -> Answer:
    """Return per node `collect` (amount: bytes freed), `idle`, `short` (amount: bytes missing) or `unknown`.

    If images are removed, `used-before` and `used-after` of the file system follow, `remove` per image, and
    `used-again` per image that the history uses within a day of its removal.
    """
    rows = Rows(snapshot.node_names)
    configurations = NodeConfigurations(snapshot, parameters.config, parameters.changes)
    configurations.add_notes(rows)
    columns, starts = image_columns(snapshot, rows)
    capacity, available = _file_system(snapshot, parameters, rows)
    now = float(snapshot.meta.get("taken_at", 0.0))
    uses = image_uses(parameters.history, now, now + DAY) if parameters.history else None
    ids, names = snapshot.images["image"], snapshot.images["names"]
    policies: dict[str, ImageGCPolicy] = {}
    for node in range(snapshot.node_count):
        key = configurations.key(node)
        if key not in policies:
            policies[key] = _policy(configurations.of(node), parameters)
        policy = policies[key]
        first, last = int(starts[node]), int(starts[node + 1])
        if capacity[node] <= 0:
            rows.add(node, "unknown", "", "the image file system's size is not known", 0, "bytes")
            continue
        if policy.off:
            rows.add(node, "idle", "", "image GC is off", 0, "bytes")
            continue
        images = image_slice(columns, first, last)
        removed, result = _collect(images, policy, int(capacity[node]), int(available[node]), now)
        rows.add(node, *result)
        if removed:
            used = int(capacity[node]) - int(available[node])
            freed = sum(int(images.size[row]) for row, _ in removed)
            rows.add_use(node, "imagefs", used, used - freed, "bytes")
        for row, reason in removed:
            position = first + row
            image, called = ids[position].as_py(), names[position].as_py()
            size = int(columns.size[position])
            label = called.split()[0] if called.strip() else image
            if parameters.images:
                rows.add(node, "remove", label, reason, size, "bytes")
            if uses is not None and uses.again(snapshot.node_names[node], image, called):
                rows.add(node, "used-again", label, "used within a day of its removal", size, "bytes")
    return rows.answer()


def _collect(
    columns: ImageColumns, policy: ImageGCPolicy, capacity: int, available: int, now: float
) -> tuple[list[tuple[int, str]], tuple[str, str, str, int, str]]:
    """Collect the images of one node: first those beyond the maximum age, then until enough bytes are free.

    Return the removed rows with reasons, and the decision, object, reason, amount and unit of the node's row.
    """
    # A kubelet that has just started spares images for the maximum age. Here it has run for longer.
    aged = selection.order(columns, selection.old(columns, policy, now, -np.inf), policy, now)
    removed = [(row, "older than the maximum age") for row in aged]
    freed = int(columns.size[aged].sum())
    wanted = policy.bytes_to_free(capacity, available + freed)
    # The kubelet rounds the free share down, and so the usage up.
    usage = 100 - min(available, capacity) * 100 // capacity
    if wanted is None:
        if removed:
            return removed, ("collect", "", "by age only", freed, "bytes")
        return removed, ("idle", "", f"usage {usage} % below {policy.high_threshold_percent} %", 0, "bytes")
    eligible = selection.spare(columns, policy, now)
    selection.leave_out(eligible, aged)
    chosen = selection.order(columns, eligible, policy, now, wanted)
    removed += [(row, f"{policy.order} order, for space") for row in chosen]
    gained = int(columns.size[chosen].sum())
    reason = f"usage {usage} %, down to {policy.low_threshold_percent} %"
    if gained < wanted:
        return removed, ("short", "", f"{reason}: not enough unused images", wanted - gained, "bytes")
    return removed, ("collect", "", reason, freed + gained, "bytes")


def _policy(config: KubeletConfiguration, parameters: ImageGCParameters) -> ImageGCPolicy:
    base = ImageGCPolicy.from_config(config, ImagesSection())
    # A high threshold that is asked about may be below the configured low one, which no policy may have.
    high = base.high_threshold_percent if parameters.high is None else parameters.high
    return ImageGCPolicy(
        high,
        min(base.low_threshold_percent, high) if parameters.low is None else parameters.low,
        base.min_age if parameters.min_age is None else parameters.min_age,
        base.max_age if parameters.max_age is None else parameters.max_age,
        parameters.order,
    )


def _file_system(
    snapshot: Snapshot, parameters: ImageGCParameters, rows: Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return bytes of capacity (-1 unknown) and available, per node."""
    capacity = snapshot.reading("imagefs_capacity", "nodefs_capacity")
    if (capacity < 0).any():
        ephemeral = snapshot.allocatable("ephemeral-storage", "capacity")
        if (ephemeral[capacity < 0] > 0).any():
            rows.note("without statistics, ephemeral-storage capacity stands for the image file system")
        capacity = np.where(capacity < 0, ephemeral, capacity)
    if parameters.capacity is not None:
        capacity = np.full(snapshot.node_count, parameters.capacity, np.int64)
    available = snapshot.reading("imagefs_available", "nodefs_available")
    if parameters.usage_percent is not None:
        available = capacity // 100 * (100 - parameters.usage_percent)
        rows.note(f"image file systems are assumed to be {parameters.usage_percent} % full")
    capacity = np.where(available < 0, -1, capacity)
    return capacity, available
