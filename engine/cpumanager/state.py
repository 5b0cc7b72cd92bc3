"""Which containers hold which CPUs exclusively. What nobody holds is shared, so the two cannot overlap."""

from __future__ import annotations

from collections.abc import Iterator


class CpuState:
    """Exclusive CPUs by pod uid and container, and the pool that all other containers run in.

    `pool` is the shared pool while nobody holds anything: the online CPUs, without reserved ones under
    strict-cpu-reservation. `pods` are the CPUs of pods that are managed as a whole.
    """

    def __init__(self, pool: int) -> None:
        self.pool = pool
        self.pods: dict[str, int] = {}
        self._held: dict[str, dict[str, int]] = {}

    @property
    def shared(self) -> int:
        """The CPUs of all containers that hold none exclusively."""
        return self.pool & ~self.exclusive

    @property
    def exclusive(self) -> int:
        """All CPUs that some container or pod holds."""
        found = 0
        for containers in self._held.values():
            for cpus in containers.values():
                found |= cpus
        for cpus in self.pods.values():
            found |= cpus
        return found

    def held(self, pod_uid: str, container: str) -> int | None:
        """The CPUs that a container holds; None if it holds none."""
        return self._held.get(pod_uid, {}).get(container)

    def of_pod(self, pod_uid: str) -> dict[str, int]:
        """The CPUs of each container of a pod that holds some."""
        return dict(self._held.get(pod_uid, {}))

    def entries(self) -> Iterator[tuple[str, str, int]]:
        """(pod uid, container, CPUs) of everybody who holds some."""
        for pod_uid, containers in self._held.items():
            for container, cpus in containers.items():
                yield pod_uid, container, cpus

    def assign(self, pod_uid: str, container: str, cpus: int) -> None:
        """Give a container CPUs, in place of those that it holds."""
        self._held.setdefault(pod_uid, {})[container] = cpus

    def release(self, pod_uid: str, container: str) -> None:
        """Take back what a container holds, and the pod's CPUs with its last container."""
        containers = self._held.get(pod_uid, {})
        containers.pop(container, None)
        if not containers:
            self._held.pop(pod_uid, None)
            self.pods.pop(pod_uid, None)

    def release_pod(self, pod_uid: str) -> None:
        """Take back what all containers of a pod hold."""
        self._held.pop(pod_uid, None)
        self.pods.pop(pod_uid, None)

    @property
    def pod_uids(self) -> list[str]:
        """Pods that hold CPUs."""
        return list(self._held)
