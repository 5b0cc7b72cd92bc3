"""The pure parts: cgroup paths and weights, commands, capabilities, signals, selectors."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from engine.api.amounts.cpu_weight import cpu_weight
from engine.api.errors import InvalidInput
from engine.runtime import requests
from engine.runtime.hierarchy import container_path
from engine.runtime.objects.records import Records, RuntimeContainer, Sandbox, as_field, joined
from engine.runtime.shim.identity import CAPABILITIES
from engine.wire import cri_v1_pb2 as cri


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(0, 1), (2, 1), (102, 4), (1024, 39), (2000, 77), (262_144, 10_000), (999_999, 10_000)],
)
def test_shares_become_weights_by_the_linear_rule(shares: int, weight: int) -> None:
    assert cpu_weight(shares) == weight


@pytest.mark.parametrize(
    ("shares", "weight"), [(0, 1), (2, 1), (102, 17), (1024, 100), (2000, 170), (262_144, 10_000)]
)
def test_shares_become_weights_by_the_logarithmic_rule(shares: int, weight: int) -> None:
    assert cpu_weight(shares, "logarithmic") == weight


def test_cgroup_paths_of_both_drivers() -> None:
    assert container_path("/kubepods/podx", "id", "cgroupfs") == "/kubepods/podx/id"
    assert container_path("", "id", "cgroupfs") == "/kubengine/id"
    assert container_path("kubepods-burstable-podx.slice", "id", "systemd") == (
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice/kubengine-id.scope"
    )
    with pytest.raises(InvalidInput, match="slice"):
        container_path("/kubepods/podx", "id", "systemd")


@pytest.mark.parametrize(
    ("command", "args", "image", "expected"),
    [
        ([], [], {"Entrypoint": ["e"], "Cmd": ["c"]}, ["e", "c"]),
        ([], ["a"], {"Entrypoint": ["e"], "Cmd": ["c"]}, ["e", "a"]),
        (["x"], [], {"Entrypoint": ["e"], "Cmd": ["c"]}, ["x"]),
        (["x"], ["a"], {"Entrypoint": ["e"], "Cmd": ["c"]}, ["x", "a"]),
        ([], [], {"Cmd": ["c"]}, ["c"]),
    ],
)
def test_command_and_args_over_the_images(
    command: list[str], args: list[str], image: dict[str, Any], expected: list[str]
) -> None:
    assert requests.arguments(cri.ContainerConfig(command=command, args=args), image) == expected


def test_nothing_to_run_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no command"):
        requests.arguments(cri.ContainerConfig(), {})


def test_capability_words() -> None:
    def kept(add: list[str], drop: list[str]) -> set[str]:
        capability = cri.Capability(add_capabilities=add, drop_capabilities=drop)
        return requests.capabilities(cri.LinuxContainerSecurityContext(capabilities=capability))

    assert kept([], []) == set(requests.DEFAULT_CAPABILITIES)
    assert kept(["ALL"], []) == set(CAPABILITIES)
    assert kept(["all"], ["CAP_SYS_ADMIN"]) == set(CAPABILITIES) - {"SYS_ADMIN"}
    assert kept(["CAP_NET_ADMIN"], ["ALL"]) == {"NET_ADMIN"}
    with pytest.raises(InvalidInput, match="NO_SUCH"):
        kept(["NO_SUCH"], [])


@pytest.mark.parametrize(
    ("wanted", "image", "expected"),
    [
        (cri.RUNTIME_DEFAULT, "", signal.SIGTERM),
        (cri.RUNTIME_DEFAULT, "SIGQUIT", signal.SIGQUIT),
        (cri.RUNTIME_DEFAULT, "quit", signal.SIGQUIT),
        (cri.RUNTIME_DEFAULT, "3", signal.SIGQUIT),
        (cri.RUNTIME_DEFAULT, "SIGRTMIN+3", signal.SIGRTMIN + 3),
        (cri.SIGUSR1, "SIGQUIT", signal.SIGUSR1),
        (cri.SIGRTMINPLUS3, "", signal.SIGRTMIN + 3),
        (cri.SIGRTMAXMINUS2, "", signal.SIGRTMAX - 2),
        (cri.SIGRTMAX, "", signal.SIGRTMAX),
        (cri.SIGPOLL, "", signal.SIGIO),
    ],
)
def test_stop_signals(wanted: cri.Signal, image: str, expected: int) -> None:
    config = cri.ContainerConfig(stop_signal=wanted)
    assert requests.stop_signal(config, {"StopSignal": image}) == expected


def test_every_signal_of_the_protocol_has_a_number() -> None:
    for value in cri.Signal.values():
        assert 0 < requests.stop_signal(cri.ContainerConfig(stop_signal=value), {}) < 65


def test_unknown_stop_signal_is_refused() -> None:
    with pytest.raises(InvalidInput, match="SIGNOTHING"):
        requests.stop_signal(cri.ContainerConfig(), {"StopSignal": "SIGNOTHING"})


def test_lists_in_wire_form_are_the_message() -> None:
    records = Records()
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="p", uid="u"), labels={"big": "x" * 300}
    )
    sandbox = Sandbox("a" * 64, config, 5)
    records.add_sandbox(sandbox)
    for number in range(3):
        metadata = cri.ContainerMetadata(name=f"c{number}")
        records.add_container(
            RuntimeContainer(str(number) * 64, sandbox, cri.ContainerConfig(metadata=metadata), 7)
        )
    listed = cri.ListContainersResponse.FromString(joined(records.containers.values()))
    assert list(listed.containers) == [container.entry() for container in records.containers.values()]
    sandboxes = cri.ListPodSandboxResponse.FromString(joined([sandbox]))
    assert list(sandboxes.items) == [sandbox.entry()]
    assert as_field(1, sandbox.entry()) == sandboxes.SerializeToString()


@pytest.mark.parametrize(
    ("mount", "word"),
    [
        (cri.Mount(host_path="/a", container_path="/b", recursive_read_only=True), "needs readonly"),
        (
            cri.Mount(
                host_path="/a",
                container_path="/b",
                readonly=True,
                recursive_read_only=True,
                propagation=cri.PROPAGATION_HOST_TO_CONTAINER,
            ),
            "needs private propagation",
        ),
        (cri.Mount(container_path="/b"), "expected a host path"),
    ],
)
def test_senseless_mounts_are_refused(mount: cri.Mount, word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        requests.mounts(cri.ContainerConfig(mounts=[mount]), Path("/etc"), {})
