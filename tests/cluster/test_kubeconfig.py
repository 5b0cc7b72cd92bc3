"""Kubeconfigs in the forms that nodes have."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput
from engine.cluster.kubeconfig import parse_kubeconfig
from engine.transport.pool import Server

PATH = Path("/etc/kubernetes/kubelet.conf")
TEXT = """
apiVersion: v1
kind: Config
current-context: here
clusters:
- name: other
  cluster: {server: "https://other:1"}
- name: c
  cluster:
    server: https://10.0.0.1:6443/behind/
    certificate-authority: pki/ca.crt
    tls-server-name: kubernetes
    proxy-url: http://proxy:3128
users:
- name: u
  user: {client-certificate: /abs/a.pem, client-key: a.key, tokenFile: token}
contexts:
- name: here
  context: {cluster: c, user: u, namespace: ignored}
preferences: {}
"""


def test_the_current_context_is_used_and_paths_start_at_the_file():
    config = parse_kubeconfig(TEXT.encode(), PATH)
    assert config.server == Server("10.0.0.1", 6443, "kubernetes", ("proxy", 3128))
    assert config.prefix == "/behind"
    assert config.cluster.certificate_authority == "/etc/kubernetes/pki/ca.crt"
    assert config.user.client_certificate == "/abs/a.pem"
    assert config.user.client_key == "/etc/kubernetes/a.key"
    assert config.user.token_file == "/etc/kubernetes/token"


def test_data_may_stand_in_the_file():
    data = base64.b64encode(b"pem").decode()
    text = TEXT.replace("certificate-authority: pki/ca.crt", f"certificate-authority-data: {data}")
    assert parse_kubeconfig(text.encode(), PATH).cluster.certificate_authority_data == data


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("current-context: here", "current-context: there", "contexts: there is no 'there'"),
        ("cluster: c,", "cluster: d,", "clusters: there is no 'd'"),
        ("https://10.0.0.1:6443/behind/", "http://10.0.0.1", "expected https://HOST"),
        (":6443", ":99999", "clusters: server"),
        ("http://proxy:3128", "socks5://proxy", "as proxy-url"),
        ("clusters:", "clusters: 3\nx:", "clusters"),
    ],
)
def test_an_unusable_kubeconfig_is_named(old, new, said):
    with pytest.raises(InvalidInput, match=said) as error:
        parse_kubeconfig(TEXT.replace(old, new).encode(), PATH)
    assert str(PATH) in str(error.value)
