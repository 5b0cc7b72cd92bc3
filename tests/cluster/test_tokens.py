"""Service-account tokens: asked for once, renewed in time, kept in memory only."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodSpec
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.cluster.tokens import Tokens, renewal
from engine.testing.apiserver import ApiServer, ApiServerFault

HOUR = 3600
DAY = 24 * HOUR
POD = Pod(metadata=ObjectMeta(name="p", namespace="a", uid="u"), spec=PodSpec(service_account_name="me"))


class Now:
    """Serve as the clock of client and server; tests set `seconds`."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("seconds", "early", "wanted"),
    [
        (HOUR, 0, 2880),
        (HOUR, 10, 2870),
        (3607, 0, 3607 - 721),
        (2 * DAY, 0, DAY),
        (10 * DAY, 5, DAY - 5),
        (DAY, 0, DAY - DAY // 5),
    ],
)
def test_a_token_is_renewed_at_80_percent_or_after_a_day(seconds: int, early: float, wanted: float) -> None:
    assert renewal(seconds, early) == wanted


async def test_a_token_serves_until_it_is_renewed_and_an_old_one_while_it_cannot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = Now()
    async with ApiServer(tmp_path, clock=now) as server:
        config = load_kubeconfig(server.kubeconfig("system:node:n1"))
        client = ApiClient(config, Credentials(config, clock=now), user_agent="test")
        tokens = Tokens(client, clock=now, chance=lambda: 0.0)
        first = await tokens.token(POD, "", HOUR)
        assert await tokens.token(POD, "", HOUR) is first
        assert (await tokens.token(POD, "other", HOUR)).text != first.text
        now.seconds += 0.8 * HOUR
        second = await tokens.token(POD, "", HOUR)
        assert second.text != first.text
        now.seconds = second.renew_at
        server.fail(500, path="/token", times=None)
        kept = await tokens.token(POD, "", HOUR)
        assert kept.text == second.text
        assert now() < kept.renew_at < second.serves_until
        now.seconds = second.serves_until
        with pytest.raises(Refused, match="expired and refresh failed") as caught:
            await tokens.token(POD, "", HOUR)
        server.heal()
        third = await tokens.token(POD, "", HOUR)
        tokens.forget(POD.uid)
        assert (await tokens.token(POD, "", HOUR)).text != third.text
        shown = [*(record.getMessage() for record in caplog.records), str(caught.value), repr(third)]
        assert not [text for text in shown if any(t.text in text for t in (first, second, third))]
        client.close()


@pytest.mark.parametrize("refusals", [1, 3, None])
async def test_a_pod_that_the_server_does_not_know_yet_gets_its_token_soon(
    tmp_path: Path, refusals: int | None
) -> None:
    async with ApiServer(tmp_path) as server:
        config = load_kubeconfig(server.kubeconfig("system:node:n1"))
        client = ApiClient(config, Credentials(config, clock=lambda: 0.0), user_agent="test")
        server.fail(403, path="/token", times=refusals)
        tokens = Tokens(client, clock=lambda: 0.0)
        if refusals is None:
            with pytest.raises(Refused, match="failed to fetch token"):
                await tokens.token(POD, "", HOUR)
        else:
            assert (await tokens.token(POD, "", HOUR)).text
        client.close()


async def test_a_token_is_requested_once_if_its_account_does_not_exist(tmp_path: Path) -> None:
    async with ApiServer(tmp_path) as server:
        config = load_kubeconfig(server.kubeconfig("system:node:n1"))
        client = ApiClient(config, Credentials(config, clock=lambda: 0.0), user_agent="test")
        server.fail(404, path="/token")
        with pytest.raises(Refused, match="failed to fetch token"):
            await Tokens(client, clock=lambda: 0.0).token(POD, "", HOUR)
        client.close()


async def test_a_busy_server_has_longer_for_a_token_than_for_a_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cluster.tokens.REQUEST_SECONDS", 0.2)
    async with ApiServer(tmp_path) as server:
        config = load_kubeconfig(server.kubeconfig("system:node:n1"))
        client = ApiClient(config, Credentials(config, clock=lambda: 0.0), user_agent="test", timeout=0.1)
        server.fail(ApiServerFault.HANG)
        with pytest.raises(Refused, match=r"failed to fetch token: no answer within 0\.2 s"):
            await Tokens(client, clock=lambda: 0.0).token(POD, "", HOUR)
        client.close()
