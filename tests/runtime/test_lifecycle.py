"""Sandboxes and containers through their states, on the embedded runtime and on containerd alike."""

from __future__ import annotations

import asyncio
import time

import pytest

from engine.api.errors import NotFound, Refused
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.pods import BUSYBOX, Pods
from tests.waiting import eventually


async def test_the_runtime_reports_its_name_and_status(pods: Pods) -> None:
    version = await pods.client.version()
    assert version.runtime_api_version == "v1"
    assert version.version == "0.1.0"
    conditions = {c.type: c.status for c in (await pods.client.status()).status.conditions}
    assert conditions == {"RuntimeReady": True, "NetworkReady": True}
    config = await pods.client.runtime_config()
    assert config is None or config.linux.cgroup_driver == cri.CGROUPFS


async def test_sandbox_from_ready_to_gone(pods: Pods) -> None:
    sandbox = await pods.pod(labels={"app": "a", "tier": "x"}, annotations={"note": "n"})
    status = (await pods.client.pod_sandbox_status(sandbox)).status
    assert status.state == cri.SANDBOX_READY
    assert status.network.ip.startswith("10.")
    assert dict(status.labels) == {"app": "a", "tier": "x"}
    assert dict(status.annotations) == {"note": "n"}
    assert 0 <= time.time_ns() - status.created_at < 60_000_000_000
    await pods.client.stop_pod_sandbox(sandbox)
    await pods.client.stop_pod_sandbox(sandbox)
    status = (await pods.client.pod_sandbox_status(sandbox)).status
    assert status.state == cri.SANDBOX_NOTREADY
    await pods.client.remove_pod_sandbox(sandbox)
    await pods.client.remove_pod_sandbox(sandbox)
    with pytest.raises(NotFound):
        await pods.client.pod_sandbox_status(sandbox)


async def test_sandboxes_are_found_by_id_state_and_labels(pods: Pods) -> None:
    one = await pods.pod(labels={"app": "a", "tier": "x"})
    two = await pods.pod(labels={"app": "a"})
    await pods.client.stop_pod_sandbox(two)

    async def find(**filter: object) -> set[str]:
        found = await pods.client.list_pod_sandboxes(cri.PodSandboxFilter(**filter))  # type: ignore[arg-type]
        return {sandbox.id for sandbox in found} & {one, two}

    assert await find() == {one, two}
    assert await find(id=one) == {one}
    assert await find(id=one[:13]) == {one}
    assert await find(label_selector={"app": "a"}) == {one, two}
    assert await find(label_selector={"app": "a", "tier": "x"}) == {one}
    assert await find(state=cri.PodSandboxStateValue(state=cri.SANDBOX_NOTREADY)) == {two}
    assert await find(id=one, state=cri.PodSandboxStateValue(state=cri.SANDBOX_NOTREADY)) == set()


async def test_container_from_created_to_gone(pods: Pods) -> None:
    sandbox = await pods.pod()
    container = await pods.create(
        sandbox, "/bin/sh", "-c", "echo out; echo err >&2; sleep 0.2; exit 3",
        name="c", labels={"l": "1"}, annotations={"a": "2"},
    )  # fmt: skip
    status = await pods.status(container)
    assert status.state == cri.CONTAINER_CREATED
    assert (status.started_at, status.finished_at) == (0, 0)
    assert status.created_at > 0
    await pods.client.start_container(container)
    assert (await pods.status(container)).state == cri.CONTAINER_RUNNING
    status = await pods.ended(container)
    assert (status.exit_code, status.reason) == (3, "Error")
    assert status.created_at <= status.started_at < status.finished_at
    assert status.metadata.name == "c"
    assert (dict(status.labels), dict(status.annotations)) == ({"l": "1"}, {"a": "2"})
    assert status.image.image == BUSYBOX
    assert status.image_ref
    [listed] = await pods.client.list_containers(cri.ContainerFilter(id=container))
    image = await pods.client.image_status(BUSYBOX)
    assert image is not None
    assert listed.image_ref == image.id
    assert status.log_path == f"{pods.configs[sandbox].log_directory}/c.log"
    assert sorted(pods.log(status)) == [("stderr", "F", "err"), ("stdout", "F", "out")]
    await pods.client.stop_container(container, 5)
    await pods.client.remove_container(container)
    await pods.client.remove_container(container)
    with pytest.raises(NotFound):
        await pods.client.container_status(container)


async def test_containers_are_found_by_id_state_sandbox_and_labels(pods: Pods) -> None:
    sandbox, other = await pods.pod(), await pods.pod()
    running = await pods.start(sandbox, "sleep", "1000", labels={"app": "a"})
    created = await pods.create(sandbox, "sleep", "1000", labels={"app": "b"})
    elsewhere = await pods.create(other, "sleep", "1000", labels={"app": "a"})

    async def find(**filter: object) -> set[str]:
        found = await pods.client.list_containers(cri.ContainerFilter(**filter))  # type: ignore[arg-type]
        return {container.id for container in found} & {running, created, elsewhere}

    assert await find() == {running, created, elsewhere}
    assert await find(pod_sandbox_id=sandbox) == {running, created}
    assert await find(label_selector={"app": "a"}) == {running, elsewhere}
    assert await find(state=cri.ContainerStateValue(state=cri.CONTAINER_RUNNING)) == {running}
    assert await find(id=created[:12]) == {created}
    assert await find(id=created, label_selector={"app": "a"}) == set()


async def test_clean_end_is_completed(pods: Pods) -> None:
    status = await pods.ended(await pods.shell("true"))
    assert (status.exit_code, status.reason) == (0, "Completed")


async def test_end_by_signal_is_128_more(pods: Pods) -> None:
    status = await pods.ended(await pods.shell("sh -c 'kill -SEGV $$'; exit $?"))
    assert status.exit_code == 139
    status = await pods.ended(await pods.shell("kill -KILL $$", pid=cri.POD))
    assert status.exit_code == 137


async def test_stop_lets_the_container_end_itself(pods: Pods) -> None:
    container = await pods.shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    await _log_has(pods, container, "ready")
    await pods.client.stop_container(container, 10)
    assert (await pods.status(container)).exit_code == 7


async def test_stop_kills_after_the_grace(pods: Pods) -> None:
    container = await pods.shell("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    await _log_has(pods, container, "ready")
    began = time.monotonic()
    await pods.client.stop_container(container, 1)
    assert time.monotonic() - began >= 0.9
    assert (await pods.status(container)).exit_code == 137
    await pods.client.stop_container(container, 1)


async def test_removing_a_running_container_or_pod_kills(pods: Pods) -> None:
    sandbox = await pods.pod()
    one = await pods.start(sandbox, "sleep", "1000")
    two = await pods.start(sandbox, "sleep", "1000")
    await pods.client.remove_container(one)
    with pytest.raises(NotFound):
        await pods.client.container_status(one)
    await pods.client.stop_pod_sandbox(sandbox)
    assert (await pods.status(two)).state == cri.CONTAINER_EXITED
    await pods.client.remove_pod_sandbox(sandbox)
    with pytest.raises(NotFound):
        await pods.client.container_status(two)


@pytest.mark.root
async def test_simultaneous_removals_all_succeed(embedded: Pods) -> None:
    sandbox = await embedded.pod()
    container = await embedded.start(sandbox, "sleep", "1000")
    await asyncio.gather(*(embedded.client.remove_container(container) for _ in range(5)))
    await asyncio.gather(*(embedded.client.remove_pod_sandbox(sandbox) for _ in range(3)))


async def test_wrong_states_and_unknown_names_are_refused(pods: Pods) -> None:
    sandbox = await pods.pod()
    container = await pods.start(sandbox, "sleep", "1000")
    with pytest.raises(Refused):
        await pods.client.start_container(container)
    with pytest.raises(NotFound):
        await pods.client.start_container("f" * 64)
    with pytest.raises(NotFound):
        await pods.client.container_stats("f" * 64)
    with pytest.raises(Refused):
        await pods.client.create_container(
            "f" * 64, cri.ContainerConfig(metadata=cri.ContainerMetadata(name="x")), cri.PodSandboxConfig()
        )
    with pytest.raises(Refused):
        await pods.create(sandbox, "true", image="example.com/nobody/has-this:1")
    await pods.client.stop_pod_sandbox(sandbox)
    with pytest.raises(Refused):
        await pods.create(sandbox, "true")


async def test_names_are_taken_once(pods: Pods) -> None:
    config = pods.config()
    sandbox = await pods.pod(config)
    with pytest.raises(Refused, match=sandbox):
        await pods.client.run_pod_sandbox(config)
    container = await pods.create(sandbox, "true", name="same")
    with pytest.raises(Refused, match=container):
        await pods.create(sandbox, "true", name="same")
    await pods.client.remove_container(container)
    await pods.create(sandbox, "true", name="same")


async def test_program_that_is_not_there_fails_the_start(pods: Pods) -> None:
    sandbox = await pods.pod()
    for program in ("/no/such/program", "no-such-program", "/etc/passwd"):
        container = await pods.create(sandbox, program)
        with pytest.raises(Refused, match=program):
            await pods.client.start_container(container)
        status = await pods.status(container)
        assert status.state == cri.CONTAINER_EXITED
        assert (status.exit_code, status.reason) == (128, "StartError")


async def test_out_of_memory_is_the_reason(pods: Pods) -> None:
    limit = cri.LinuxContainerConfig(
        resources=cri.LinuxContainerResources(memory_limit_in_bytes=24 << 20),
    )
    container = await pods.shell("x=$(dd if=/dev/zero bs=1M count=64 | tr '\\0' x); echo ${#x}", linux=limit)
    status = await pods.ended(container)
    assert status.exit_code != 0

    async def reports_it() -> bool:  # containerd learns it from another event
        return (await pods.status(container)).reason == "OOMKilled"

    await eventually(reports_it)


async def _log_has(pods: Pods, container: str, text: str) -> None:
    async def there() -> bool:
        return any(line[2] == text for line in pods.log(await pods.status(container)))

    await eventually(there)
