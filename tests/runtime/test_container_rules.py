"""Rules of a runtime that a container cannot see itself: what it refuses, honours and reports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import InvalidInput, NotFound, Refused
from engine.runtime import seccomp
from engine.runtime.embedded import EmbeddedRuntime
from engine.runtime.images.store import ImageStore
from engine.runtime.requests import mounts
from engine.testing.images import ImageEntry, make_layer, write_image
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.pods import Pods

KINDS = cri.SecurityProfile


def _sandbox(**fields: Any) -> cri.LinuxPodSandboxConfig:
    return cri.LinuxPodSandboxConfig(security_context=cri.LinuxSandboxSecurityContext(**fields))


def _container(**fields: Any) -> cri.LinuxContainerConfig:
    return cri.LinuxContainerConfig(security_context=cri.LinuxContainerSecurityContext(**fields))


async def _info(pods: Pods, *, sandbox: str = "", container: str = "") -> dict[str, Any]:
    answer = (
        await pods.client.pod_sandbox_status(sandbox, verbose=True)
        if sandbox
        else await pods.client.container_status(container, verbose=True)
    )
    facts: dict[str, Any] = json.loads(answer.info["info"])
    return facts


@pytest.mark.root
async def test_user_namespaces_are_refused_with_the_reason_and_the_nodes_is_accepted(embedded: Pods) -> None:
    def options(mode: cri.NamespaceMode) -> cri.NamespaceOption:
        return cri.NamespaceOption(pid=cri.CONTAINER, userns_options=cri.UserNamespace(mode=mode))

    with pytest.raises(Refused, match="hostUsers must be true"):
        await embedded.pod(linux=_sandbox(namespace_options=options(cri.POD)))
    sandbox = await embedded.pod(linux=_sandbox(namespace_options=options(cri.NODE)))
    with pytest.raises(Refused, match="hostUsers must be true"):
        await embedded.create(sandbox, "true", linux=_container(namespace_options=options(cri.POD)))
    await embedded.start(sandbox, "true", linux=_container(namespace_options=options(cri.NODE)))


@pytest.mark.parametrize("privileged", [True, False])
def test_bidirectional_propagation_needs_privileges(tmp_path: Path, privileged: bool) -> None:
    config = cri.ContainerConfig(
        mounts=[cri.Mount(host_path="/x", container_path="/x", propagation=cri.PROPAGATION_BIDIRECTIONAL)],
        linux=_container(privileged=privileged),
    )
    if privileged:
        assert mounts(config, tmp_path, {})[-1]["propagation"] == cri.PROPAGATION_BIDIRECTIONAL
    else:
        with pytest.raises(InvalidInput, match="mount /x: bidirectional"):
            mounts(config, tmp_path, {})


@pytest.mark.root
async def test_image_volumes_are_read_only_and_report_their_pull(embedded: Pods) -> None:
    archive = write_image(
        embedded.directory / "v.tar", ["volume:1"], layers=[make_layer([ImageEntry("file", data=b"1")])]
    )
    [image] = ImageStore(embedded.directory / "root").import_archive(archive)
    sandbox = await embedded.pod()

    def mount(*, readonly: bool) -> list[cri.Mount]:
        return [cri.Mount(container_path="/v", image=cri.ImageSpec(image="volume:1"), readonly=readonly)]

    with pytest.raises(Refused, match="must be read-only"):
        await embedded.create(sandbox, "true", mounts=mount(readonly=False))
    container = await embedded.create(sandbox, "true", mounts=mount(readonly=True))
    [reported] = (await embedded.status(container)).mounts
    assert (reported.image.image, reported.image.image_ref) == ("volume:1", image.id)
    assert await embedded.client.pull_image("volume:1") == reported.image.image_ref


def _seccomp_mode(pid: int) -> str:
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Seccomp:"))


@pytest.mark.root
@pytest.mark.parametrize(
    ("profile", "privileged", "mode"),
    [
        (KINDS(profile_type=KINDS.RuntimeDefault), False, "2"),
        (KINDS(profile_type=KINDS.RuntimeDefault), True, "0"),
        (KINDS(profile_type=KINDS.Unconfined), False, "0"),
    ],
)
async def test_the_sandbox_has_the_pods_seccomp_profile(
    embedded: Pods, profile: cri.SecurityProfile, privileged: bool, mode: str
) -> None:
    sandbox = await embedded.pod(linux=_sandbox(seccomp=profile, privileged=privileged))
    container = await embedded.start(sandbox, "sleep", "1000", pid=cri.POD)
    assert (await embedded.client.exec_sync(container, ["true"], 10)).exit_code == 0
    assert _seccomp_mode((await _info(embedded, sandbox=sandbox))["pid"]) == mode


@pytest.mark.root
async def test_a_missing_profile_of_the_sandbox_is_named(embedded: Pods) -> None:
    profile = KINDS(profile_type=KINDS.Localhost, localhost_ref="/nowhere/profile.json")
    with pytest.raises(NotFound, match=r"seccomp profile /nowhere/profile\.json"):
        await embedded.pod(linux=_sandbox(seccomp=profile))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"defaultAction": 5}', '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": 5}',
        '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [5]}',
        '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": 5, "action": "SCMP_ACT_ERRNO"}]}',
        '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls":'
        ' [{"names": ["read"], "action": "SCMP_ACT_ERRNO", "args": [{"op": "SCMP_CMP_EQ", "index": "x"}]}]}',
        '{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": "many"}', "[" * 100_000,
        " " * (1 << 20) + "{}",
    ],
)  # fmt: skip
def test_odd_profiles_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=str(path)):
        seccomp.filter_program(_localhost(path), ())


def test_a_profile_that_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(InvalidInput, match=str(path)):
            seccomp.filter_program(_localhost(path), ())


def _localhost(path: Path) -> cri.LinuxContainerSecurityContext:
    profile = KINDS(profile_type=KINDS.Localhost, localhost_ref=str(path))
    return cri.LinuxContainerSecurityContext(seccomp=profile)


@pytest.mark.root
async def test_privileged_containers_have_no_masked_or_read_only_paths(embedded: Pods) -> None:
    sandbox = await embedded.pod(linux=_sandbox(privileged=True))
    paths = {"masked_paths": ["/proc/keys"], "readonly_paths": ["/proc/sys"]}
    script = "grep -c -e ' /proc/keys ' -e ' /proc/sys ' /proc/mounts || true"
    assert await embedded.output(script, sandbox, linux=_container(privileged=True, **paths)) == "0"
    assert await embedded.output(script, sandbox, linux=_container(**paths)) == "2"


@pytest.mark.root
async def test_verbose_status_has_an_oci_specification(embedded: Pods) -> None:
    security = _container(
        run_as_user=cri.Int64Value(value=1000),
        capabilities=cri.Capability(drop_capabilities=["ALL"], add_capabilities=["NET_RAW"]),
        masked_paths=["/proc/keys"],
    )
    security.resources.memory_limit_in_bytes = 64 << 20
    container = await embedded.start(
        await embedded.pod(), "sleep", "1000", working_dir="/www", linux=security,
        envs=[cri.KeyValue(key="A", value=b"b")],
        mounts=[cri.Mount(host_path="/etc", container_path="/host", readonly=True)],
    )  # fmt: skip
    spec = (await _info(embedded, container=container))["runtimeSpec"]
    assert spec["ociVersion"].count(".") == 2
    process = spec["process"]
    assert (process["args"], process["cwd"], process["user"]["uid"]) == (["sleep", "1000"], "/www", 1000)
    assert "A=b" in process["env"]
    assert process["capabilities"]["bounding"] == ["CAP_NET_RAW"]
    assert {
        "destination": "/host",
        "type": "bind",
        "source": "/etc",
        "options": ["rbind", "rprivate", "ro"],
    } in (spec["mounts"])
    assert spec["linux"]["resources"]["memory"] == {"limit": 64 << 20}
    assert spec["linux"]["maskedPaths"] == ["/proc/keys"]
    assert {space["type"] for space in spec["linux"]["namespaces"]} == {
        "mount",
        "network",
        "ipc",
        "uts",
        "pid",
    }
    assert spec["linux"]["cgroupsPath"].endswith(container)


@pytest.mark.root
async def test_stats_list_dead_containers_too(embedded: Pods) -> None:
    sandbox = await embedded.pod()
    alive = await embedded.start(sandbox, "sleep", "1000")
    dead = await embedded.shell("echo text > /file", sandbox)
    await embedded.ended(dead)
    listed = {stats.attributes.id: stats for stats in await embedded.client.list_container_stats()}
    assert listed.keys() == {alive, dead}
    assert listed[alive].HasField("memory")
    assert not listed[dead].HasField("memory")
    assert not listed[dead].HasField("cpu")
    assert listed[dead].writable_layer.used_bytes.value >= 4096


@pytest.mark.root
async def test_deep_trees_in_a_root_file_system(embedded: Pods) -> None:
    """A directory tree as deep as a shell can make it is measured and removed."""
    sandbox = await embedded.pod()
    container = await embedded.shell("while mkdir d && cd d; do :; done 2>/dev/null", sandbox)
    await embedded.ended(container)
    [stats] = await embedded.client.list_container_stats()
    assert stats.writable_layer.inodes_used.value > 1500
    top = embedded.directory / "root" / "containers"
    await embedded.client.remove_container(container)
    assert list(top.iterdir()) == []


@pytest.mark.root
async def test_deep_leftovers_do_not_keep_a_runtime_from_starting(tmp_path: Path) -> None:
    left = tmp_path / "root" / "containers" / "gone"
    left.mkdir(parents=True)
    here = os.open(left, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    runtime = EmbeddedRuntime(socket=tmp_path / "s", root=tmp_path / "root", state=tmp_path / "state")
    await runtime.start()
    try:
        assert not left.exists()
    finally:
        await runtime.purge()


@pytest.mark.root
def test_deep_layers_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    archive = write_image(
        tmp_path / "deep.tar", ["deep:1"], layers=[make_layer([ImageEntry("d/" * 1500 + "f", data=b"1")])]
    )
    store = ImageStore(tmp_path / "root")
    with pytest.raises(InvalidInput, match="levels deep"):
        store.import_archive(archive)
    assert list(store.layers.iterdir()) == []


@pytest.mark.root
async def test_memory_and_swap_limits_rise_and_fall_together(embedded: Pods) -> None:
    """Each may be written only while memory is not above both together, whichever way they move."""
    container = await embedded.start(await embedded.pod(), "sleep", "1000")
    groups = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    [group] = [
        path.parent for top in groups if top.is_dir() for path in top.glob(f"*/*/{container}/cgroup.procs")
    ][:1]
    files = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
    for mebibytes in (64, 256, 32):
        wanted = cri.LinuxContainerResources(
            memory_limit_in_bytes=mebibytes << 20, memory_swap_limit_in_bytes=mebibytes << 20
        )
        await embedded.client.update_container_resources(container, wanted)
        for name in files:
            if (group / name).exists():
                assert int((group / name).read_text()) == mebibytes << 20
        if (group / "memory.swap.max").exists():
            assert (group / "memory.swap.max").read_text() == "0\n"
