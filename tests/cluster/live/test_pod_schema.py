"""The list of a PodSpec's fields is that of a real API server: none is missing from the table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.cluster.client import ApiClient
from tests.cluster.control_plane import ControlPlane, Object

LISTED = Path(__file__).parents[2] / "project" / "data" / "pod_spec_fields.txt"
POD_SPEC = "io.k8s.api.core.v1.PodSpec"
METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def fields(schemas: Object, name: str) -> Iterator[str]:
    """Yield the paths of the fields below a type as the list writes them: metadata is one field. No type
    below a PodSpec contains itself."""
    if name == METADATA:
        return
    for field, value in schemas[name].get("properties", {}).items():
        is_list = value.get("type") == "array"
        inner = value["items"] if is_list else value
        path = f"{field}[]" if is_list else field
        below = [f"{path}.{each}" for each in fields(schemas, of)] if (of := _named(inner)) else []
        yield from below or [path]


def _named(value: Any) -> str:
    """Return the name of the type that a schema refers to, or ""."""
    references = [value, *value.get("allOf", ())]
    found = [each["$ref"].rpartition("/")[2] for each in references if "$ref" in each]
    return str(found[0]) if found else ""


def below(paths: set[str], kind: str) -> set[str]:
    return {path.removeprefix(f"{kind}[].") for path in paths if path.startswith(f"{kind}[].")}


async def test_no_field_of_a_pod_is_missing_from_the_list(
    real: ControlPlane, connect: Callable[[Path], ApiClient]
) -> None:
    served = await connect(real.admin).get("/openapi/v3/api/v1", Object)
    known = set(fields(served["components"]["schemas"], POD_SPEC))
    listed = set(LISTED.read_text().split())
    of_containers = below(known, "containers")
    assert below(known, "initContainers") == of_containers
    assert below(known, "ephemeralContainers") - of_containers == {"targetContainerName"}
    others = ("initContainers[]", "ephemeralContainers[]")
    assert {p for p in known ^ listed if not p.startswith(others)} == set()
