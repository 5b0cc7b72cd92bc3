"""Seccomp profiles: compiled by libseccomp, kept by the kernel."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput, KubengineError
from engine.runtime import seccomp
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.pods import Pods


def _missing() -> bool:
    try:
        ctypes.CDLL(seccomp.LIBRARY)
    except OSError:
        return True
    return False


pytestmark = pytest.mark.skipif(_missing(), reason=f"{seccomp.LIBRARY} is not installed")

BLOCK_CHMOD = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["chmod", "fchmod", "fchmodat", "fchmodat2"], "action": "SCMP_ACT_ERRNO"}],
}


def wanted(kind: cri.SecurityProfile.ProfileType, path: Path | None = None, **fields: object) -> object:
    profile = cri.SecurityProfile(profile_type=kind, localhost_ref=str(path or ""))
    context = cri.LinuxContainerSecurityContext(seccomp=profile)
    context.MergeFrom(cri.LinuxContainerSecurityContext(**fields))  # type: ignore[arg-type]
    return cri.LinuxContainerConfig(security_context=context)


async def mode(pods: Pods, container: str) -> str:
    """Return the `Seccomp:` mode of a command that runs in the container: 0 for none, 2 for a filter."""
    answer = await pods.client.exec_sync(container, ["grep", "Seccomp:", "/proc/self/status"], 10)
    return answer.stdout.decode().split()[1]


@pytest.mark.parametrize(
    ("kind", "expected"), [(cri.SecurityProfile.Unconfined, "0"), (cri.SecurityProfile.RuntimeDefault, "2")]
)
async def test_profiles_of_the_runtime(
    pods: Pods, kind: cri.SecurityProfile.ProfileType, expected: str
) -> None:
    container = await pods.start(await pods.pod(), "sleep", "1000", linux=wanted(kind))
    assert await mode(pods, container) == expected


async def test_default_lets_capabilities_through(pods: Pods) -> None:
    linux = wanted(
        cri.SecurityProfile.RuntimeDefault, capabilities=cri.Capability(add_capabilities=["SYS_ADMIN"])
    )
    container = await pods.start(await pods.pod(), "sleep", "1000", linux=linux)
    assert await mode(pods, container) == "2"
    answer = await pods.client.exec_sync(container, ["hostname", "renamed"], 10)
    assert answer.exit_code == 0


@pytest.mark.parametrize("no_new_privs", [False, True])
async def test_local_profile(pods: Pods, tmp_path: Path, no_new_privs: bool) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(BLOCK_CHMOD))
    linux = wanted(cri.SecurityProfile.Localhost, path, no_new_privs=no_new_privs)
    container = await pods.start(await pods.pod(), "sleep", "1000", linux=linux)
    assert await mode(pods, container) == "2"
    answer = await pods.client.exec_sync(container, ["chmod", "400", "/tmp"], 10)
    assert b"not permitted" in answer.stderr


async def test_privileged_containers_have_no_filter(pods: Pods, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(BLOCK_CHMOD))
    privileged = cri.LinuxSandboxSecurityContext(privileged=True)
    sandbox = await pods.pod(linux=cri.LinuxPodSandboxConfig(security_context=privileged))
    linux = wanted(cri.SecurityProfile.Localhost, path, privileged=True)
    container = await pods.start(sandbox, "sleep", "1000", linux=linux)
    assert await mode(pods, container) == "0"


@pytest.mark.root
@pytest.mark.parametrize("text", [None, "not json", "[]", '{"defaultAction": "SCMP_ACT_SHRUG"}'])
async def test_bad_profiles_are_named(embedded: Pods, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "profile.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(KubengineError, match=r"profile\.json|SCMP_ACT_SHRUG"):
        await embedded.create(await embedded.pod(), "true", linux=wanted(cri.SecurityProfile.Localhost, path))


def test_rules_compare_arguments_and_ask_for_capabilities() -> None:
    def rule(**fields: object) -> bytes:
        return seccomp.compiled(
            {
                "defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{"names": ["personality"], "action": "SCMP_ACT_ERRNO", **fields}],
            },
            ["CHOWN"],
        )

    bare = rule()
    compared = rule(args=[{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}])
    nothing = seccomp.compiled({"defaultAction": "SCMP_ACT_ALLOW"}, [])
    assert len(compared) > len(bare) > len(nothing) > 0
    assert len(bare) % 8 == 0
    assert rule(includes={"caps": ["CAP_CHOWN"]}) == bare
    assert rule(includes={"caps": ["CAP_SYS_ADMIN"]}) == nothing
    assert rule(excludes={"caps": ["CAP_CHOWN"]}) == nothing
    assert rule(names=["no_such_call"]) == nothing
    assert rule(errnoRet=38) != bare
    with pytest.raises(InvalidInput, match="op"):
        rule(args=[{"index": 0, "value": 8, "op": "SCMP_CMP_ISH"}])
    with pytest.raises(InvalidInput, match="personality"):
        rule(args=[{"index": 9, "value": 8, "op": "SCMP_CMP_EQ"}])


def test_default_forbids_less_to_the_capable() -> None:
    [bare] = seccomp.default_profile([])["syscalls"]
    [capable] = seccomp.default_profile(["SYS_ADMIN", "SYS_BOOT"])["syscalls"]
    assert {"mount", "reboot", "keyctl"} <= set(bare["names"])
    assert not {"mount", "reboot"} & set(capable["names"])
    assert "keyctl" in capable["names"]
