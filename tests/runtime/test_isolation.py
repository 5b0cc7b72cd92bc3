"""What a container may use and what it is denied, on the embedded runtime and on containerd alike."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.wire import cri_v1_pb2 as cri
from tests.ports import free_port
from tests.runtime.pods import Pods, embedded_runtime
from tests.waiting import eventually


def secure(**fields: object) -> cri.LinuxContainerConfig:
    context = cri.LinuxContainerSecurityContext(**fields)  # type: ignore[arg-type]
    return cri.LinuxContainerConfig(security_context=context)


def number(value: int) -> cri.Int64Value:
    return cri.Int64Value(value=value)


async def caps(pods: Pods, linux: cri.LinuxContainerConfig) -> int:
    text = await pods.output("grep CapEff /proc/self/status", linux=linux)
    return int(text.split()[1], 16)


async def run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0, command


# Users and groups


async def test_user_and_group_by_number(pods: Pods) -> None:
    linux = secure(run_as_user=number(1234), run_as_group=number(4321), supplemental_groups=[7, 9])
    assert await pods.output("id -u; id -g; id -G", linux=linux) == "1234\n4321\n4321 7 9"


async def test_user_by_name_brings_its_groups(pods: Pods) -> None:
    linux = secure(run_as_username="app", supplemental_groups=[7])
    text = await pods.output(
        "id -u; id -g; id -G | tr ' ' '\\n' | sort -n | tr '\\n' ' '; echo; pwd", linux=linux
    )
    lines = text.split("\n")
    assert lines[:2] == ["1000", "1000"]
    assert {"7", "1000", "50000"} <= set(lines[2].split())


async def test_user_number_without_a_name_is_allowed(pods: Pods) -> None:
    assert await pods.output("id -u", linux=secure(run_as_user=number(54321))) == "54321"


async def test_other_users_may_open_their_outputs(pods: Pods) -> None:
    linux = secure(run_as_user=number(1000))
    assert await pods.output("echo out > /dev/stdout; echo err > /proc/self/fd/2", linux=linux) == "out"


async def test_unknown_user_and_group_alone_are_refused(pods: Pods) -> None:
    sandbox = await pods.pod()
    with pytest.raises(Refused):
        await pods.start(sandbox, "true", linux=secure(run_as_username="nobody-has-this-name"))
    with pytest.raises(Refused):
        await pods.start(sandbox, "true", linux=secure(run_as_group=number(3)))


# Capabilities


async def test_default_capabilities(pods: Pods) -> None:
    assert await caps(pods, secure()) == 0x00000000A80425FB


async def test_capabilities_are_added_and_dropped(pods: Pods) -> None:
    added = await caps(pods, secure(capabilities=cri.Capability(add_capabilities=["NET_ADMIN"])))
    assert added == 0xA80425FB | 1 << 12
    dropped = await caps(pods, secure(capabilities=cri.Capability(drop_capabilities=["CHOWN"])))
    assert dropped == 0xA80425FB & ~1
    none = await caps(pods, secure(capabilities=cri.Capability(drop_capabilities=["ALL"])))
    assert none == 0
    both = cri.Capability(drop_capabilities=["ALL"], add_capabilities=["NET_RAW"])
    assert await caps(pods, secure(capabilities=both)) == 1 << 13


async def test_all_capabilities_are_those_of_the_host(pods: Pods) -> None:
    mine = int(Path("/proc/self/status").read_text().split("CapBnd:")[1].split()[0], 16)
    assert await caps(pods, secure(capabilities=cri.Capability(add_capabilities=["ALL"]))) == mine


async def test_other_users_have_no_capabilities(pods: Pods) -> None:
    assert await caps(pods, secure(run_as_user=number(1000))) == 0


async def test_no_new_privileges(pods: Pods) -> None:
    script = "grep NoNewPrivs /proc/self/status"
    assert (await pods.output(script, linux=secure(no_new_privs=True))).split() == ["NoNewPrivs:", "1"]
    assert (await pods.output(script, linux=secure(no_new_privs=False))).split() == ["NoNewPrivs:", "0"]


# File system


async def test_read_only_root(pods: Pods) -> None:
    script = "touch /x 2>/dev/null && echo written; touch /dev/shm/x && echo shm; echo done"
    assert await pods.output(script, linux=secure(readonly_rootfs=True)) == "shm\ndone"
    assert await pods.output(script, linux=secure()) == "written\nshm\ndone"


async def test_root_is_the_containers_own(pods: Pods) -> None:
    sandbox = await pods.pod()
    await pods.ended(await pods.shell("echo mine > /mine; rm /www/index.html", sandbox))
    script = "ls /mine 2>/dev/null; cat /www/index.html"
    assert await pods.output(script, sandbox) == "ok"


async def test_masked_and_read_only_paths(pods: Pods) -> None:
    linux = secure(
        masked_paths=["/proc/kcore", "/proc/acpi", "/sys/firmware", "/no/such/path"],
        readonly_paths=["/proc/sys", "/proc/bus"],
    )
    script = (
        "head -c 1 /proc/kcore | wc -c; ls /sys/firmware 2>/dev/null | wc -l;"
        "echo 1 > /proc/sys/net/ipv4/ip_forward && echo written; true"
    )
    assert [
        line for line in (await pods.output(script, linux=linux)).split("\n") if "read-only" not in line
    ] == [
        "0",
        "0",
    ]


@pytest.mark.root
async def test_sys_is_read_only_unless_privileged(embedded: Pods) -> None:
    pods = embedded
    script = "grep ' /sys ' /proc/mounts | cut -d' ' -f4 | cut -d, -f1; ls /dev | wc -l"
    ordinary = (await pods.output(script)).split("\n")
    assert ordinary[0] == "ro"
    sandbox = await pods.pod(
        linux=cri.LinuxPodSandboxConfig(security_context=cri.LinuxSandboxSecurityContext(privileged=True))
    )
    privileged = (await pods.output(script, sandbox, linux=secure(privileged=True))).split("\n")
    assert privileged[0] == "rw"
    assert int(privileged[1]) > int(ordinary[1])


async def test_mounts_of_directories_and_files(pods: Pods) -> None:
    data = pods.directory / "data"
    data.mkdir()
    (data / "file").write_text("content\n")
    mounts = [
        cri.Mount(host_path=str(data), container_path="/data"),
        cri.Mount(host_path=str(data), container_path="/made/for/it", readonly=True),
        cri.Mount(host_path=str(data / "file"), container_path="/etc/one-file"),
        cri.Mount(host_path=str(pods.directory / "new"), container_path="/new"),
    ]
    script = (
        "cat /data/file /etc/one-file; echo more > /data/other; cat /made/for/it/other;"
        "touch /made/for/it/x 2>/dev/null || echo denied; touch /new/y; mount | grep -c ' /etc/hosts '"
    )
    assert await pods.output(script, mounts=mounts) == "content\ncontent\nmore\ndenied\n1"
    assert (data / "other").read_text() == "more\n"
    assert (pods.directory / "new" / "y").exists()


async def test_mounts_follow_the_image_s_links_and_nest(pods: Pods) -> None:
    outer, inner = pods.directory / "outer", pods.directory / "inner"
    outer.mkdir()
    inner.mkdir()
    (inner / "deep").write_text("deep\n")
    mounts = [
        cri.Mount(host_path=str(inner), container_path="/a/b/c"),
        cri.Mount(host_path=str(outer), container_path="/a"),
    ]
    assert await pods.output("cat /a/b/c/deep", mounts=mounts) == "deep"


async def test_mount_propagation(pods: Pods) -> None:
    """A mount made on the host appears (host-to-container), one made inside appears outside (both ways)."""
    shared = pods.directory / "shared"
    shared.mkdir()
    await run("mount", "-t", "tmpfs", "shared", str(shared))
    try:
        await run("mount", "--make-rshared", str(shared))
        for name in ("late", "private", "inside"):
            (shared / name).mkdir()
        sandbox = await pods.pod(
            linux=cri.LinuxPodSandboxConfig(security_context=cri.LinuxSandboxSecurityContext(privileged=True))
        )
        mounts = [
            cri.Mount(
                host_path=str(shared), container_path="/follow", propagation=cri.PROPAGATION_HOST_TO_CONTAINER
            ),
            cri.Mount(host_path=str(shared), container_path="/own"),
            cri.Mount(
                host_path=str(shared), container_path="/both", propagation=cri.PROPAGATION_BIDIRECTIONAL
            ),
        ]
        container = await pods.start(sandbox, "sleep", "1000", mounts=mounts, linux=secure(privileged=True))
        await run("mount", "-t", "tmpfs", "late", str(shared / "late"))
        (shared / "late" / "flag").touch()

        async def sees(path: str) -> bool:
            return (await pods.client.exec_sync(container, ["test", "-e", path], 10)).exit_code == 0

        assert await sees("/follow/late/flag")
        assert await sees("/both/late/flag")
        assert not await sees("/own/late/flag")
        made = await pods.client.exec_sync(container, ["mount", "-t", "tmpfs", "inside", "/both/inside"], 10)
        assert made.exit_code == 0, made.stderr
        assert f" {shared}/inside " in Path("/proc/self/mountinfo").read_text()
    finally:
        await pods.client.stop_pod_sandbox(sandbox)
        for path in (shared / "inside", shared / "late", shared):
            await run("umount", "-l", str(path))


async def test_shared_memory_is_the_pods(pods: Pods) -> None:
    sandbox = await pods.pod()
    await pods.ended(await pods.shell("echo hello > /dev/shm/note", sandbox))
    assert await pods.output(
        "cat /dev/shm/note; df -m /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2", sandbox
    ) == ("hello\n64")


async def test_devices(pods: Pods) -> None:
    devices = [cri.Device(host_path="/dev/zero", container_path="/dev/my/zero", permissions="rw")]
    assert await pods.output("head -c 5 /dev/my/zero | wc -c", devices=devices) == "5"
    script = "for d in null zero full random urandom tty ptmx; do test -c /dev/$d || echo $d; done"
    assert await pods.output(f"{script}; echo all > /dev/null; echo all") == "all"


# Namespaces


async def test_process_namespaces(pods: Pods) -> None:
    assert await pods.output("echo $$") == "1"
    sandbox = await pods.pod()
    first = await pods.start(sandbox, "sleep", "3456", pid=cri.POD)
    text = await pods.output("echo $$; ps -o args | grep -c '[s]leep 3456'", sandbox, pid=cri.POD)
    assert text.split("\n")[0] != "1"
    assert text.split("\n")[1] == "1"
    await pods.client.stop_container(first, 0)


async def test_process_namespace_of_another_container(pods: Pods) -> None:
    sandbox = await pods.pod()
    target = await pods.start(sandbox, "sleep", "3457")
    options = cri.NamespaceOption(pid=cri.TARGET, target_id=target)
    text = await pods.output(
        "tr '\\0' ' ' < /proc/1/cmdline", sandbox, pid=cri.TARGET, linux=secure(namespace_options=options)
    )
    assert text == "sleep 3457 "


async def test_host_namespaces(pods: Pods) -> None:
    options = cri.NamespaceOption(network=cri.NODE, pid=cri.NODE, ipc=cri.NODE)
    sandbox = await pods.pod(
        linux=cri.LinuxPodSandboxConfig(
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=options)
        )
    )
    assert (await pods.client.pod_sandbox_status(sandbox)).status.network.ip == ""
    script = "hostname; for n in net pid ipc uts; do readlink /proc/self/ns/$n; done"
    lines = (await pods.output(script, sandbox, pid=cri.NODE, linux=secure(namespace_options=options))).split(
        "\n"
    )
    assert lines[0] == socket.gethostname()
    assert lines[1:] == [str(Path("/proc/self/ns", kind).readlink()) for kind in ("net", "pid", "ipc", "uts")]


async def test_pod_namespaces_are_shared_within_and_not_with_the_host(pods: Pods) -> None:
    sandbox = await pods.pod()
    script = "hostname; for n in net ipc uts mnt; do readlink /proc/self/ns/$n; done"
    one = (await pods.output(script, sandbox)).split("\n")
    two = (await pods.output(script, sandbox)).split("\n")
    assert one[:4] == two[:4]
    assert one[0] == pods.configs[sandbox].hostname
    host = [str(Path("/proc/self/ns", kind).readlink()) for kind in ("net", "ipc", "uts", "mnt")]
    assert not set(one) & set(host)


async def test_pods_reach_each_other_and_the_host_reaches_them(pods: Pods) -> None:
    server = await pods.pod()
    await pods.shell("httpd -f -p 8080 -h /www", server)
    address = (await pods.client.pod_sandbox_status(server)).status.network.ip

    async def answers() -> bool:
        try:
            with socket.create_connection((address, 8080), timeout=1) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                return b"ok" in connection.recv(4096)
        except OSError:
            return False

    await eventually(answers)
    assert await pods.output(f"wget -q -O - http://{address}:8080/") == "ok"


async def test_sysctls(pods: Pods) -> None:
    sysctls = {"net.ipv4.ip_local_port_range": "20000 30000", "kernel.shm_rmid_forced": "1"}
    sandbox = await pods.pod(linux=cri.LinuxPodSandboxConfig(sysctls=sysctls))
    script = "cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/kernel/shm_rmid_forced"
    assert (await pods.output(script, sandbox)).split() == ["20000", "30000", "1"]


# Names, environment, command


async def test_dns_config(pods: Pods) -> None:
    dns = cri.DNSConfig(servers=["10.0.0.53"], searches=["a.example", "b.example"], options=["ndots:5"])
    sandbox = await pods.pod(dns_config=dns)
    text = await pods.output("cat /etc/resolv.conf", sandbox)
    assert text.split("\n") == ["search a.example b.example", "nameserver 10.0.0.53", "options ndots:5"]


async def test_environment_and_working_directory(pods: Pods) -> None:
    envs = [cri.KeyValue(key="A", value=b"1"), cri.KeyValue(key="B", value=b"x y=z")]
    text = await pods.output('echo "$A|$B|$HOSTNAME|$PATH|$HOME"; pwd', envs=envs, working_dir="/made/here")
    first, second = text.split("\n")
    a, b, hostname, path, home = first.split("|")
    assert (a, b, home, second) == ("1", "x y=z", "/root", "/made/here")
    assert hostname.startswith("pod-")
    assert path == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def test_args_replace_the_images(pods: Pods) -> None:
    sandbox = await pods.pod()
    status = await pods.ended(await pods.start(sandbox, args=["sh", "-c", "echo args"]))
    assert pods.log(status)[0][2] == "args"
    status = await pods.ended(await pods.start(sandbox, "echo", args=["a", "b c"]))
    assert pods.log(status)[0][2] == "a b c"


# Resources


def cgroup_file(pods: Pods, sandbox: str, container: str, controller: str, name: str) -> Path:
    tree = Path("/sys/fs/cgroup", controller)
    parent = pods.configs[sandbox].linux.cgroup_parent.strip("/")
    return tree / parent / container / name


v1_only = pytest.mark.skipif(not Path("/sys/fs/cgroup/memory").is_dir(), reason="needs a cgroup v1 layout")


@v1_only
async def test_limits_are_in_the_kernels_files_and_change_live(pods: Pods) -> None:
    resources = cri.LinuxContainerResources(
        cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, memory_limit_in_bytes=64 << 20,
        oom_score_adj=500, cpuset_cpus="0",
    )  # fmt: skip
    sandbox = await pods.pod()
    container = await pods.start(
        sandbox, "sleep", "1000", linux=cri.LinuxContainerConfig(resources=resources)
    )

    def value(controller: str, name: str) -> str:
        return cgroup_file(pods, sandbox, container, controller, name).read_text().strip()

    assert value("cpu", "cpu.shares") == "512"
    assert value("cpu", "cpu.cfs_quota_us") == "50000"
    assert value("cpu", "cpu.cfs_period_us") == "100000"
    assert value("memory", "memory.limit_in_bytes") == str(64 << 20)
    assert value("cpuset", "cpuset.cpus") == "0"
    [pid] = value("memory", "cgroup.procs").split()
    assert Path("/proc", pid, "oom_score_adj").read_text().strip() == "500"
    status = await pods.status(container)
    assert status.resources.linux.memory_limit_in_bytes == 64 << 20
    await pods.client.update_container_resources(
        container,
        cri.LinuxContainerResources(
            cpu_shares=1024, cpu_quota=80_000, cpu_period=100_000, memory_limit_in_bytes=96 << 20
        ),
    )
    assert value("cpu", "cpu.shares") == "1024"
    assert value("cpu", "cpu.cfs_quota_us") == "80000"
    assert value("memory", "memory.limit_in_bytes") == str(96 << 20)
    linux = (await pods.status(container)).resources.linux
    assert (linux.cpu_shares, linux.memory_limit_in_bytes) == (1024, 96 << 20)


async def test_stats(pods: Pods) -> None:
    sandbox = await pods.pod()
    container = await pods.shell(
        "echo 1 > /file; i=0; while :; do i=$((i+1)); done", sandbox, labels={"s": "1"}
    )

    async def counted() -> bool:
        stats = await pods.client.container_stats(container)
        return (
            stats.cpu.usage_core_nano_seconds.value > 50_000_000 and stats.memory.working_set_bytes.value > 0
        )

    await eventually(counted)
    stats = await pods.client.container_stats(container)
    assert stats.attributes.id == container
    assert dict(stats.attributes.labels) == {"s": "1"}
    found = await pods.client.list_container_stats(cri.ContainerStatsFilter(pod_sandbox_id=sandbox))
    assert [s.attributes.id for s in found] == [container]
    pod = await pods.client.pod_sandbox_stats(sandbox)
    assert pod.linux.cpu.usage_core_nano_seconds.value > 50_000_000
    assert pod.linux.network.default_interface.name == "eth0"
    assert [c.attributes.id for c in pod.linux.containers] == [container]


@pytest.mark.root
async def test_host_port_leads_into_the_pod_as_long_as_it_lives(embedded: Pods) -> None:
    port = free_port()
    mapping = cri.PortMapping(container_port=8080, host_port=port, host_ip="127.0.0.1")
    sandbox = await embedded.pod(port_mappings=[mapping])
    await embedded.shell("httpd -f -p 8080 -h /www", sandbox)

    async def fetch() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    async def answers() -> bool:
        try:
            return (await fetch()).endswith(b"ok\n")
        except ConnectionError:
            return False

    await eventually(answers)
    assert all(answer.endswith(b"ok\n") for answer in await asyncio.gather(*(fetch() for _ in range(20))))
    with pytest.raises(Refused, match=f"host port {port}: Address already in use"):
        await embedded.pod(port_mappings=[mapping])
    with pytest.raises(Refused, match="only TCP"):
        await embedded.pod(port_mappings=[cri.PortMapping(protocol=cri.UDP, container_port=1, host_port=1)])
    await embedded.client.stop_pod_sandbox(sandbox)

    async def closed() -> bool:
        try:
            await fetch()
        except ConnectionError:
            return True
        return False

    await eventually(closed)


@pytest.mark.root
async def test_cdi_devices_bring_nodes_mounts_and_environment(
    tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
) -> None:
    specifications = tmp_path / "cdi"
    specifications.mkdir()
    (tmp_path / "library").write_text("driver\n")
    (specifications / "vendor.json").write_text(
        json.dumps(
            {
                "cdiVersion": "0.6.0",
                "kind": "vendor.example/gpu",
                "containerEdits": {
                    "mounts": [
                        {
                            "hostPath": str(tmp_path / "library"),
                            "containerPath": "/usr/lib/driver",
                            "options": ["ro"],
                        }
                    ]
                },
                "devices": [
                    {
                        "name": "0",
                        "containerEdits": {
                            "env": ["GPU=zero"],
                            "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/zero"}],
                        },
                    },
                    {"name": "hooked", "containerEdits": {"hooks": [{"hookName": "createContainer"}]}},
                ],
            }
        )
    )
    async with embedded_runtime(
        tmp_path, busybox_archive, private_cgroup_root, cdi_directories=[specifications]
    ) as pods:
        text = await pods.output(
            "echo $GPU; head -c 3 /dev/gpu0 | wc -c; cat /usr/lib/driver",
            CDI_devices=[cri.CDIDevice(name="vendor.example/gpu=0")],
        )
        assert text == "zero\n3\ndriver"
        sandbox = await pods.pod()
        with pytest.raises(Refused, match="gpu=9"):
            await pods.create(sandbox, "true", CDI_devices=[cri.CDIDevice(name="vendor.example/gpu=9")])
        with pytest.raises(Refused, match="hooks"):
            await pods.create(sandbox, "true", CDI_devices=[cri.CDIDevice(name="vendor.example/gpu=hooked")])


async def test_privileged_containers_need_a_privileged_pod(pods: Pods) -> None:
    with pytest.raises(Refused, match="privileged"):
        await pods.create(await pods.pod(), "true", linux=secure(privileged=True))


async def test_host_paths_that_are_links_or_not_there(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    mounts = [
        cri.Mount(host_path=str(tmp_path / "link"), container_path="/link"),
        cri.Mount(host_path=str(tmp_path / "missing"), container_path="/missing"),
    ]
    assert await pods.output("ls /link; ls -ld /missing | cut -c1-10", mounts=mounts) == "file\ndrwxr-xr-x"
    assert (tmp_path / "missing").is_dir()


async def test_an_image_without_a_user_names_none(pods: Pods) -> None:
    image = await pods.client.image_status("busybox")
    assert image is not None
    assert (image.HasField("uid"), image.username) == (False, "")
