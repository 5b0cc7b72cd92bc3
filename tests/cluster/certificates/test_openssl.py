"""Keys and certificates by the real command."""

from __future__ import annotations

import pytest

from engine.api.errors import InvalidInput, Refused
from engine.cluster.certificates.openssl import (
    certificate_facts,
    certificate_request,
    fits,
    new_key,
    self_signed,
)
from engine.host.child import run_child


async def test_a_request_names_the_node_and_its_addresses():
    key = await new_key()
    request = await certificate_request(
        key, "system:node:n1", "system:nodes", ["n1.example", "10.0.0.1", "fe80::1"]
    )
    shown = await run_child(
        ["openssl", "req", "-noout", "-text", "-verify"],
        stdin=request,
        seconds=60,
        most=1 << 16,
        subject="req",
    )
    text = shown.out.decode()
    assert "Subject: O = system:nodes, CN = system:node:n1" in text
    assert "DNS:n1.example, IP Address:10.0.0.1, IP Address:FE80:0:0:0:0:0:0:1" in text
    assert "ecdsa-with-SHA256" in text
    assert "verify OK" in text + shown.errors


async def test_a_certificate_that_vouches_for_itself():
    key, other = await new_key(), await new_key()
    certificate = await self_signed(key, "n1@1", ["n1", "2001:db8::1"], days=365)
    facts = await certificate_facts(certificate)
    assert facts.names == {"n1", "2001:db8::1"}
    assert facts.not_after - facts.not_before == 365 * 86400
    assert await fits(certificate, key)
    assert not await fits(certificate, other)


@pytest.mark.parametrize("name", ["n1\nCN = root", "a,b", "a/CN=b", "", "$x"])
async def test_a_name_that_would_say_more_is_refused(name: str):
    key = await new_key()
    with pytest.raises(InvalidInput, match="not allowed in a certificate"):
        await certificate_request(key, name, "system:nodes")


async def test_files_that_are_no_certificate_or_key():
    with pytest.raises(Refused, match="openssl x509"):
        await certificate_facts(b"nothing")
    with pytest.raises(Refused, match="openssl req"):
        await certificate_request(b"nothing", "a", "b")
