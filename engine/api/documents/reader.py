"""Parses text to typed objects: YAML or JSON, one document or many, with precise errors.

Unknown fields of pods and of the kubelet's configuration are warnings; those of our own configuration are
errors. Every error is an `InvalidInput` whose subject is the file and whose message contains the field path
and what was expected.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from sys import intern
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.defaults import apply_defaults
from engine.api.documents.field_paths import described
from engine.api.documents.kubelet_validation import validate
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.api.struct import decode_hook

MAX_BYTES = 10 * 1024 * 1024
READ_BYTES = 1 << 16
MAX_DEPTH = 100
"""The same limit as in `yaml_text`."""
CONTAINERD = "unix:///run/containerd/containerd.sock"
"""The runtime socket of a kubelet whose configuration does not name one."""

_ZEROS: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False, Quantity: "0", Duration: "0s"}

log = logging.getLogger("kubengine.config")

T = TypeVar("T")


def read_text(path: Path) -> bytes:
    """Read a file of reasonable size. Raises `InvalidInput` with the path."""
    return read_with_status(path)[0]


def read_with_status(path: Path) -> tuple[bytes, os.stat_result]:
    """Read a file, and return its status from before the read, rather than that of a file that
    replaced it.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            data = _read_at_most(file, MAX_BYTES + 1, status.st_size) if status.st_size <= MAX_BYTES else b""
        finally:
            os.close(file)
    except OSError as error:
        raise InvalidInput(error.strerror or str(error), subject=str(path)) from error
    if max(status.st_size, len(data)) > MAX_BYTES:
        raise InvalidInput(f"larger than {MAX_BYTES} bytes", subject=str(path))
    return data, status


def _read_at_most(file: int, limit: int, size: int) -> bytes:
    """Read an open file until it ends or `limit` bytes are read. `size` is the size that its status reports.

    A file of /proc or a pipe reports none, and any file may grow during the read.
    """
    # Not `limit` bytes at once: for each file, the allocator would map that much and unmap it.
    pieces = [os.read(file, size + 1)]
    length = len(pieces[0])
    while pieces[-1] and length < limit:
        pieces.append(os.read(file, min(limit - length, READ_BYTES)))
        length += len(pieces[-1])
    return b"".join(pieces)


def parse_documents(data: bytes, subject: str) -> list[dict[str, Any]]:
    """Return all objects in a YAML or JSON text; `List` and `PodList` are opened."""
    try:
        text = data.decode()
        # By the first character, as apimachinery's `yaml.ToJSON`: a mapping in YAML's braces has to be JSON.
        documents = [msgspec.json.decode(data)] if text.lstrip()[:1] == "{" else _parse_yaml(text)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"not UTF-8 text at byte {error.start}", subject=subject) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"not valid JSON: {error}", subject=subject) from None
    except MemoryError:
        raise InvalidInput("too large to be read", subject=subject) from None
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=subject) from None
    _check_depth(documents, subject)
    objects: list[dict[str, Any]] = []
    for document in documents:
        objects.extend(_open_list(document, subject))
    return objects


def _parse_yaml(text: str) -> list[Any]:
    from engine.api.documents.yaml_text import parse_yaml

    return parse_yaml(text)


def _check_depth(documents: list[Any], subject: str) -> None:
    """Check the depth, because later steps recurse once per level."""
    level = [each for each in documents if isinstance(each, dict | list)]
    for _ in range(MAX_DEPTH):
        values = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for inner in values for each in inner if isinstance(each, dict | list)]
        if not level:
            return
    raise InvalidInput(f"nested deeper than {MAX_DEPTH} levels", subject=subject)


def _open_list(document: Any, subject: str) -> Iterator[dict[str, Any]]:
    if not isinstance(document, dict):
        raise InvalidInput(f"expected an object, got {type(document).__name__}", subject=subject)
    # By its name, since lists of any kind have items; `_check_depth` bounds lists within lists.
    if str(document.get("kind", "")).endswith("List"):
        items = document.get("items")
        if not isinstance(items, list):
            raise InvalidInput("items: expected a list", subject=subject)
        for item in items:
            yield from _open_list(item, subject)
    else:
        yield document


def convert(document: Any, kind: type[T], subject: str) -> T:
    """Convert plain data to a typed object; a Pod gets an API server's defaults. Raises `InvalidInput` with
    the field path.
    """
    found = as_written(document, kind, subject)
    if isinstance(found, Pod):
        apply_defaults(found)
    return found


def as_written(document: Any, kind: type[T], subject: str) -> T:
    """Convert plain data to a typed object without defaults. Raises `InvalidInput` with the field path."""
    plain = document
    try:
        plain = fitted(document, kind)
        return msgspec.convert(plain, kind, dec_hook=decode_hook)
    except (msgspec.ValidationError, InvalidInput) as error:
        raise InvalidInput(described(plain, kind, error), subject=subject) from None


def unknown_fields(document: Any, kind: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields in plain data that the type does not have."""
    item, struct = _read_as(kind)
    if isinstance(document, list):
        for index, value in enumerate(document):
            if isinstance(value, dict | list):
                yield from unknown_fields(value, item, f"{path}[{index}]")
        return
    if not isinstance(document, dict) or struct is None:
        return
    fields = _form(struct).fields
    for name, value in document.items():
        known = name in fields
        # Most fields are known and plain, and need no path.
        if known and not isinstance(value, dict | list):
            continue
        where = f"{path}.{name}" if path else str(name)
        if known:
            yield from unknown_fields(value, fields[name], where)
        else:
            yield where


@cache
def _read_as(kind: Any) -> tuple[Any, type[msgspec.Struct] | None]:
    """Return the type of a list's items, and which struct an object is."""
    parts = list(_flatten(kind))
    item = next((part for part in parts if part is not type(None)), None)
    return item, next((part for part in parts if _is_struct(part)), None)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _flatten(kind: Any) -> Iterator[Any]:
    args = get_args(kind)
    if not args:
        yield kind
    for arg in args:
        yield from _flatten(arg)


def load_pods(path: Path) -> tuple[list[Pod], list[str]]:
    """Return the pods in a file as written (no defaults), and warnings about unknown fields.

    Raises `InvalidInput` naming the file and the field.
    """
    return parse_pods(read_text(path), str(path))


def parse_pods(data: bytes, subject: str) -> tuple[list[Pod], list[str]]:
    """Parse pods from bytes like `load_pods`; `subject` names their origin in errors."""
    documents = parse_documents(data, subject)
    if not documents:
        raise InvalidInput("contains no object; expected a Pod", subject=subject)
    pods: list[Pod] = []
    warnings: list[str] = []
    for document in documents:
        kind, version = document.get("kind"), document.get("apiVersion")
        if kind != "Pod" or version != "v1":
            raise InvalidInput(
                f"kind: expected a v1 Pod, got {version or '?'} {kind or '?'}", subject=subject
            )
        pods.append(as_written(document, Pod, subject))
        warnings += [f"{subject}: {field}: unknown field" for field in unknown_fields(document, Pod)]
    return pods, warnings


def load_config(paths: list[Path]) -> tuple[KubeletConfiguration, KubengineConfiguration]:
    """Return both configurations from the documents of one or more files; a missing one has its defaults.

    As for the kubelet, unknown fields of a KubeletConfiguration are warnings, and one that names no runtime
    means containerd's socket. Raises `InvalidInput`, also for a second configuration of a kind.
    """
    kubelet, kubengine = KubeletConfiguration(), KubengineConfiguration()
    found: dict[str, Path] = {}
    for path in paths:
        for document in parse_documents(read_text(path), str(path)):
            kind = str(document.get("kind"))
            # One would replace the other as a whole, whose fields then silently have their defaults again.
            if kind in found:
                raise InvalidInput(
                    f"kind: a second {kind}, after that of {found[kind]}; give one of each kind",
                    subject=str(path),
                )
            found[kind] = path
            match kind:
                case "KubeletConfiguration":
                    kubelet = convert(document, KubeletConfiguration, str(path))
                    kubelet.container_runtime_endpoint = kubelet.container_runtime_endpoint or CONTAINERD
                    for field in unknown_fields(document, KubeletConfiguration):
                        log.warning("%s: %s: unknown field", path, field)
                    validate(kubelet, str(path))
                case "KubengineConfiguration":
                    kubengine = convert(document, KubengineConfiguration, str(path))
                case _:
                    raise InvalidInput(
                        "kind: expected KubeletConfiguration or KubengineConfiguration, "
                        f"got {document.get('kind')!r}",
                        subject=str(path),
                    )
    return kubelet, kubengine


def fitted(document: Any, kind: Any) -> Any:
    """Return a copy of plain data that `msgspec.convert` accepts, fitted as the kubelet's decoder does.

    A null field counts as missing; a null in a map or a list is the zero value. Equal texts are shared,
    because the pods of a node mostly repeat each other. Raises `InvalidInput` with the field path for
    values that no field accepts: integers beyond 64 bits, and NUL in text.
    """
    return _fit(document, kind, "", 0)


def _fit(value: Any, kind: Any, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidInput(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidInput(f"{path or 'document'}: holds a NUL character")
        # `intern` refuses subclasses of str, which PyYAML does not make, but callers of the library may.
        return intern(value) if type(value) is str else value
    if isinstance(value, bool | float) or value is None:
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            # A quantity is text, and may have more digits than any integer of JSON.
            if Quantity in (kind, *get_args(kind)):
                return str(value)
            raise InvalidInput(f"{path or 'document'}: a number exceeds 64 bits")
        return value
    if isinstance(value, list):
        item = _form(kind).item
        zero = _zero(item)
        return [
            _fit(zero if one is None else one, item, f"{path}[{index}]", depth + 1)
            for index, one in enumerate(value)
        ]
    if isinstance(value, dict):
        return _fit_fields(value, kind, path, depth)
    return value


def _fit_fields(value: dict[Any, Any], kind: Any, path: str, depth: int) -> dict[str, Any]:
    form = _form(kind)
    kept: dict[str, Any] = {}
    for name, one in value.items():
        if not isinstance(name, str) or "\0" in name:
            raise InvalidInput(f"{path or 'document'}: a key holds a NUL character or is not a string")
        if type(one) is str and "\0" not in one:
            # Most values of a manifest are texts, and need neither their type nor their path.
            kept[name] = intern(one)
            continue
        field = form.fields.get(name, form.item)
        if one is None:
            # Go leaves a struct's field at its zero, and with it to the defaults; msgspec refuses a null.
            if form.fields:
                continue
            one = _zero(field)
        kept[name] = _fit(one, field, f"{path}.{name}" if path else name, depth + 1)
    return kept


class _Form(msgspec.Struct, frozen=True):
    """Describe the shape of a type: its fields by JSON name, and the type of its items."""

    fields: dict[str, Any]
    item: Any = None


@cache
def _form(kind: Any) -> _Form:
    """Return the shape of a type; `None` and `Any` leave their data as it is.

    Cached, since evaluating annotations costs more than reading the pod.
    """
    origin = get_origin(kind)
    if origin is Annotated:
        return _form(get_args(kind)[0])
    if origin in (Union, UnionType):
        forms = [_form(choice) for choice in get_args(kind) if choice is not type(None)]
        return _Form(
            {name: field for form in forms for name, field in form.fields.items()},
            next((form.item for form in forms if form.item is not None), None),
        )
    if origin in (list, dict):
        return _Form({}, get_args(kind)[-1])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _Form({field.encode_name: field.type for field in msgspec.structs.fields(kind)})
    return _Form({})


@cache
def _zero(kind: Any) -> Any:
    """Return the value of a null that cannot be omitted."""
    for choice in get_args(kind) or (kind,):
        if choice in _ZEROS:
            return _ZEROS[choice]
    return {} if _form(kind).fields else None
