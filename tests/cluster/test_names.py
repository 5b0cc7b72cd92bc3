"""Names in requests: whatever somebody calls an object, nothing else is asked for."""

from __future__ import annotations

import pytest

from engine.api.errors import InvalidInput
from engine.cluster.names import field_is, object_path

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "resource name may not be empty"),
        (".", "invalid resource name \".\": [may not be '.']"),
        ("..", "invalid resource name \"..\": [may not be '..']"),
        ("../secrets/s", "invalid resource name \"../secrets/s\": [may not contain '/']"),
        ("a%2e/b", "invalid resource name \"a%2e/b\": [may not contain '/' may not contain '%']"),
    ],
)
def test_invalid_names_are_refused_in_a_kubelets_words(name: str, words: str):
    with pytest.raises(InvalidInput) as caught:
        object_path(CLAIMS, name)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("data", "data"),
        ("system:node", "system:node"),
        ("a?watch=1#b", "a%3Fwatch%3D1%23b"),
        ("a b\r\n\0", "a%20b%0D%0A%00"),
        ("é", "%C3%A9"),
    ],
)
def test_a_name_stays_one_segment_of_its_path(name: str, shown: str):
    assert object_path(CLAIMS, name) == f"{CLAIMS}/{shown}"


def test_a_selector_stays_one_term():
    assert field_is("metadata.name", "s") == "metadata.name=s"
    wanted = r"metadata.name=a\,metadata.namespace\=b\\"
    assert field_is("metadata.name", "a,metadata.namespace=b\\") == wanted
