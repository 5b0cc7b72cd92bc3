"""Compare image garbage collection: would our rules have removed the images that the kubelet removed?

The kubelet detects new and used images every five minutes, at times that it does not report. So each time
that it stores for an image is known as a span only. An image was used before another one only if their spans
do not overlap. Of images whose spans overlap, the kubelet may remove either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from engine.api.amounts.sizes import binary_size
from engine.images import selection
from engine.images.policy import ImageGCPolicy
from engine.images.records import ImageRecords, SeenImage
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.eviction import disk_is_low
from engine.shadow.kinds.observation import STARTED, Observation, SeenImages

PERIOD: Final = 300.0
"""Seconds between detections of images, and between collections, of the kubelet."""
SETTLE: Final = PERIOD + 60
COUNTER: Final = "kubelet_image_garbage_collected_total"
BY_HANDLER: Final = "RuntimeClassInImageCriApi"
NOTHING: Final = "collects nothing"
OFF: Final = "image garbage collection is off"
NEVER: Final = (0.0, 0.0)


class Span(NamedTuple):
    """Hold the earliest and the latest possible time of an event, in monotonic seconds; or the least and the
    greatest possible amount.
    """

    earliest: float
    latest: float


@dataclass(frozen=True, slots=True)
class KnownImage:
    """Hold an image with the times that the kubelet can have stored: when it detected the image, and when it
    last found it in use. `used_since` is None while no container uses the image.
    """

    image: SeenImage
    detected: Span
    used: Span
    used_since: float | None = None

    def precedes(self, other: KnownImage) -> bool:
        """Return whether the kubelet certainly removes this image before the other."""
        if self.used == other.used == NEVER:
            return self.detected.latest < other.detected.earliest
        return self.used.latest < other.used.earliest

    @property
    def name(self) -> str:
        return _name(self.image)


@dataclass(frozen=True, slots=True)
class CollectedImages:
    """Hold the images that are `gone` between two readings, at `before` and `now` (monotonic seconds), and
    those that were kept. `images` is the later reading.

    `available` is the span of bytes that can have been free when the collection began. With `everything`, the
    disk was so low that a kubelet removes all unused images.
    """

    policy: ImageGCPolicy
    before: float
    now: float
    gone: Sequence[KnownImage]
    kept: Sequence[KnownImage]
    images: SeenImages
    capacity: int
    available: Span
    everything: bool = False

    def fault_for_space(self) -> str:
        """Return the rule that the removal breaks if it was for space, "" if none."""
        for one in self.gone:
            reason = self._protection(one)
            if reason:
                return f"{one.name} {reason}"
        rest = self.rest()
        for one in rest:
            for other in self.gone:
                if one.precedes(other):
                    return f"{one.name} was used before {other.name}, and goes before it"
        if self.everything:
            return f"{rest[0].name} is unused, and goes when the disk is low" if rest else ""
        if self.policy.off:
            return OFF
        sizes = [one.image.size for one in self.gone]
        least = self._bytes_to_free(self.available.latest)
        most = self._bytes_to_free(self.available.earliest)
        if most is None:
            return "the image file system is below the high threshold"
        # Without the largest image, the others must not have been enough: the kubelet stops when they are.
        if sum(sizes) - max(sizes) >= max(most, 1):
            return f"{binary_size(max(most, 0))} had to go, and fewer images have it"
        if sum(sizes) < (least or 0) and rest:
            return f"{binary_size(least or 0)} had to go, and {rest[0].name} was left"
        return ""

    def fault_for_age(self) -> str:
        """Return the rule that the removal breaks if it was for age, "" if none."""
        oldest = self.policy.max_age
        for one in self.gone:
            if one.image.pinned or self.images.uses(one.image):
                return f"{one.name} is in use or pinned"
            if self.now - one.used.earliest <= oldest:
                return f"{one.name} was used less than {oldest:g} s ago"
        return ""

    def rest(self) -> list[KnownImage]:
        """Return the kept images that the kubelet could certainly have removed."""
        return [one for one in self.kept if self._is_removable(one)]

    def _protection(self, one: KnownImage) -> str:
        """Return the reason why the kubelet may not remove an image, "" if it may."""
        if one.image.pinned:
            return "is pinned in the runtime"
        if self.images.uses(one.image):
            return "is in use by a container"
        if self.now - one.detected.earliest < self.policy.min_age:
            return f"is not there for {self.policy.min_age:g} s"
        return ""

    def _is_removable(self, one: KnownImage) -> bool:
        """Return whether an image is unused and old enough, whenever in its span it was detected."""
        return (
            one.used_since is None
            and not self._protection(one)
            and self.before - one.detected.latest >= self.policy.min_age
        )

    def _bytes_to_free(self, available: float) -> int | None:
        return self.policy.bytes_to_free(self.capacity, max(int(available), 0))


class ImageComparer:
    """Track the images of the runtime; compare each removal by the kubelet, and that it removes nothing."""

    def __init__(self) -> None:
        self._known: dict[str, KnownImage] = {}
        self._records = ImageRecords()
        self._read: SeenImages | None = None
        self._read_at = 0.0
        self._counted: dict[str, float] = {}
        self._started = 0.0
        self._runs = 0
        self._findings: list[Finding] = []

    def compare(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings; without new images, those of the last reading again."""
        if seen.images is not None:
            started = seen.series.get(STARTED, 0.0)
            if started != self._started:
                # A kubelet that restarts has lost the times of all images.
                self._known, self._read, self._started = {}, None, started
                self._records = ImageRecords()
            self._findings = list(self._compare(seen, seen.images))
        yield from self._findings

    def _compare(self, seen: Observation, images: SeenImages) -> Iterator[Finding]:
        if seen.config.gate(BY_HANDLER, False):
            yield NotJudged("images", "node", f"the gate {BY_HANDLER} is on")
            return
        policy = ImageGCPolicy.from_config(seen.config)
        counted = _counted(seen)
        removed = {reason: count - self._counted.get(reason, 0.0) for reason, count in counted.items()}
        present = {image.id for image in images.images}
        gone = [one for key, one in self._known.items() if key not in present]
        ran = self._read is not None and (gone or any(removed.values()))
        if self._read is not None and ran:
            self._runs += 1
            yield self._judge(seen, self._read, images, policy, gone, removed)
        self._counted = counted
        self._known = track_images(
            self._known, images, self._read_at if self._read is not None else None, seen.now
        )
        self._records.detect(images.images, images.used, seen.now)
        self._read, self._read_at = images, seen.now
        if not ran:
            yield self._idle(seen, policy, images)

    def _judge(
        self, seen: Observation, before: SeenImages, images: SeenImages, policy: ImageGCPolicy,
        gone: Sequence[KnownImage], removed: Mapping[str, float],
    ) -> Finding:  # fmt: skip
        """Return the finding about a removal of images; `removed` are the increases of the kubelet's
        counters, by its reason.
        """
        subject, count = f"collection {self._runs}", sum(removed.values())
        if not count:
            return NotJudged("images", subject, "another client of the runtime removed images")
        if count != len(gone):
            return NotJudged(
                "images", subject, "not all removed images were seen, or others were removed too"
            )
        by_age = removed.get("age", 0.0)
        if 0 < by_age < count:
            return NotJudged("images", subject, "images went for their age and for space at once")
        fs, after = before.filesystem, images.filesystem
        if not fs.capacity or fs.available is None or after.available is None:
            return NotJudged("images", subject, "the image file system is not known")
        present = {image.id for image in images.images}
        freed = sum(one.image.size for one in gone)
        removal = CollectedImages(
            policy, self._read_at, seen.now, gone,
            kept=[one for key, one in self._known.items() if key in present],
            images=images,
            capacity=fs.capacity,
            available=Span(*sorted((fs.available, after.available - freed))),
            everything=disk_is_low(seen, fs),
        )  # fmt: skip
        fault = removal.fault_for_age() if by_age else removal.fault_for_space()
        theirs = ", ".join(sorted(one.name for one in gone))
        ours = self._our_removals(policy, fs.capacity, fs.available) if fault else theirs
        state = _state(policy, fs.capacity, fs.available)
        reason = f"by {'age' if by_age else 'last use'}, {binary_size(freed)}"
        return Comparison("images", subject, ours, theirs, f"{fault}; {state}" if fault else state, reason)

    def _our_removals(self, policy: ImageGCPolicy, capacity: int, available: int) -> str:
        """Return the names of the images that our rules remove for space, from the reading before."""
        bytes_to_free = policy.bytes_to_free(capacity, available)
        if bytes_to_free is None:
            return "none"
        cells, now = self._records.table.cells, self._read_at
        unused = selection.spare(cells, policy, now)
        rows = selection.order(cells, unused, policy, now, max(bytes_to_free, 1))
        images = [self._records.image(row) for row in rows]
        return ", ".join(sorted(map(_name, images))) or "none"

    def _idle(self, seen: Observation, policy: ImageGCPolicy, images: SeenImages) -> Finding:
        """Return the finding about an observation since which the kubelet removed nothing."""
        fs = images.filesystem
        if not fs.capacity or fs.available is None:
            return NotJudged("images", "node", "the image file system is not known")
        bytes_to_free = None if policy.off else policy.bytes_to_free(fs.capacity, fs.available)
        ours = NOTHING
        if bytes_to_free is not None:
            kept = tuple(self._known.values())
            nothing = CollectedImages(policy, seen.now, seen.now, (), kept, images, fs.capacity, Span(0, 0))
            if nothing.rest():
                ours = "collects images"
        state = _state(policy, fs.capacity, fs.available)
        return Comparison("images", "node", ours, NOTHING, state, "the runtime still has all images", SETTLE)


def track_images(
    known: Mapping[str, KnownImage], images: SeenImages, before: float | None, now: float
) -> dict[str, KnownImage]:
    """Return the images with their times after a reading at `now`; `before` is the time of the reading before
    it, None at the first one.
    """
    found: dict[str, KnownImage] = {}
    for image in images.images:
        one = known.get(image.id)
        if one is None:
            # An image that existed before the first reading may have been used until then.
            first = before is None
            detected = Span(0.0 if before is None else before, now + PERIOD)
            one = KnownImage(image, detected, Span(0.0, now) if first else Span(*NEVER))
        since = one.used_since
        if images.uses(image):
            since = since if since is not None else before if before is not None else now
            # A use of at least one period includes a detection. A shorter one may fall between two.
            earliest = now - PERIOD if now - since >= PERIOD else one.used.earliest
            one = replace(one, image=image, used=Span(earliest, now), used_since=since)
        elif since is not None:
            one = replace(one, image=image, used=Span(one.used.earliest, now), used_since=None)
        found[image.id] = one
    return found


def _name(image: SeenImage) -> str:
    return image.names[0] if image.names else image.id


def _counted(seen: Observation) -> dict[str, float]:
    """Return the kubelet's counters of removed images, by its reason."""
    found = {}
    for series, count in seen.series.items():
        if series.startswith(COUNTER):
            found[series.partition('reason="')[2].partition('"')[0]] = count
    return found


def _state(policy: ImageGCPolicy, capacity: int, available: int) -> str:
    """Describe the use of the image file system and the thresholds."""
    used = policy.used_percent(capacity, available)
    if policy.off:
        return OFF
    return (
        f"the image file system of {binary_size(capacity)} is {used} % full, the thresholds are "
        f"{policy.high_threshold_percent} and {policy.low_threshold_percent} %"
    )
