"""Holds the exclusive CPUs of containers. All other CPUs are shared, so the two sets cannot overlap."""

from __future__ import annotations

from collections.abc import Iterator


class CpuState:
    """Hold exclusive CPUs by pod uid and container, and the pool of all other containers.

    `pool` is the shared pool before any assignment: the online CPUs, without reserved ones under
    strict-cpu-reservation. `pods` are the CPUs of pods that are managed as a whole. `baselines` are the CPUs
    that containers started with which were resized since, by pod uid and container.
    """

    def __init__(self, pool: int) -> None:
        self.pool = pool
        self.pods: dict[str, int] = {}
        self.baselines: dict[str, dict[str, int]] = {}
        self._held: dict[str, dict[str, int]] = {}

    @property
    def shared(self) -> int:
        """Return the CPUs of all containers without exclusive CPUs."""
        return self.pool & ~self.exclusive

    @property
    def exclusive(self) -> int:
        """Return all exclusive CPUs."""
        found = 0
        for containers in self._held.values():
            for cpus in containers.values():
                found |= cpus
        for cpus in self.pods.values():
            found |= cpus
        return found

    def held(self, pod_uid: str, container: str) -> int | None:
        """Return the exclusive CPUs of a container, or None."""
        return self._held.get(pod_uid, {}).get(container)

    def of_pod(self, pod_uid: str) -> dict[str, int]:
        """Return the exclusive CPUs of each container of a pod."""
        return dict(self._held.get(pod_uid, {}))

    def entries(self) -> Iterator[tuple[str, str, int]]:
        """Yield (pod uid, container, CPUs) of all assignments."""
        for pod_uid, containers in self._held.items():
            for container, cpus in containers.items():
                yield pod_uid, container, cpus

    def assign(self, pod_uid: str, container: str, cpus: int) -> None:
        """Assign CPUs to a container, replacing its earlier ones."""
        self._held.setdefault(pod_uid, {})[container] = cpus

    def resize(self, pod_uid: str, container: str, cpus: int) -> None:
        """Give a running container other CPUs, and remember those that it started with."""
        started = self.baselines.setdefault(pod_uid, {})
        started.setdefault(container, self._held[pod_uid][container])
        self._held[pod_uid][container] = cpus

    def baseline(self, pod_uid: str, container: str) -> int | None:
        """Return the CPUs that a container started with; None if it was never resized."""
        return self.baselines.get(pod_uid, {}).get(container)

    def release(self, pod_uid: str, container: str) -> None:
        """Release the CPUs of a container, and the pod's CPUs with its last container."""
        containers = self._held.get(pod_uid, {})
        containers.pop(container, None)
        self.baselines.get(pod_uid, {}).pop(container, None)
        if not containers:
            self.release_pod(pod_uid)

    def release_pod(self, pod_uid: str) -> None:
        """Release the CPUs of all containers of a pod."""
        self._held.pop(pod_uid, None)
        self.pods.pop(pod_uid, None)
        self.baselines.pop(pod_uid, None)

    @property
    def pod_uids(self) -> list[str]:
        """Return the uids of pods with exclusive CPUs."""
        return list(self._held)
