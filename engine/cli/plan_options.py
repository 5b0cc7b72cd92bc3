"""Derive command-line options from a question's parameters, so that both always agree."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from engine.api.errors import InvalidInput


def parameter_options(kind: type[msgspec.Struct]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds one option per field.

    Texts and numbers are given as they are, lists by repeating the option, mappings as `KEY=VALUE`
    (repeated, or separated by commas), booleans as a pair of flags.
    """
    hints = get_type_hints(kind, include_extras=True)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for field in reversed(msgspec.structs.fields(kind)):
            function = _option(field.name, hints[field.name], field)(function)
        return function

    return decorate


def option_name(field: str) -> str:
    """Return a field's option name: `max_age` becomes `--max-age`."""
    return f"--{field.replace('_', '-')}"


def _option(name: str, hint: Any, field: msgspec.structs.FieldInfo) -> Callable[[Any], Any]:
    help = ""
    if get_origin(hint) is Annotated:
        help = next(
            (m.description for m in hint.__metadata__ if isinstance(m, msgspec.Meta) and m.description), ""
        )
        hint = hint.__origin__
    hint = _without_none(hint)
    flag = f"--{name.replace('_', '-')}"
    short = ["-f"] if name == "file" else []
    if hint is bool:
        return click.option(
            f"{flag}/--no-{flag[2:]}", f"given_{name}", default=field.default, help=help, show_default=True
        )
    origin = get_origin(hint)
    if origin is dict:
        return click.option(flag, f"given_{name}", multiple=True, metavar="KEY=VALUE", help=help)
    if origin is list:
        inner = _plain(get_args(hint)[0])
        if inner not in (str, int) and get_origin(inner) is not Literal:
            return click.option(flag, f"given_{name}", multiple=True, metavar="JSON", help=help)
        return click.option(*short, flag, f"given_{name}", multiple=True, type=_type(inner), help=help)
    default = field.default if field.default is not msgspec.NODEFAULT else None
    shown = default not in (None, "")
    return click.option(
        *short,
        flag,
        f"given_{name}",
        type=_type(hint),
        default=None,
        help=help + (f"  [default: {default}]" if shown else ""),
    )


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [arg for arg in get_args(hint) if arg is not type(None)]
        return kinds[0]
    return hint


def _plain(hint: Any) -> Any:
    """Strip `Annotated` from a type."""
    return hint.__origin__ if get_origin(hint) is Annotated else hint


def _type(hint: Any) -> Any:
    hint = _plain(hint)
    if get_origin(hint) is Literal:
        return click.Choice([str(value) for value in get_args(hint)])
    return hint if hint in (int, float) else str


def parameters_from(kind: type[msgspec.Struct], given: dict[str, Any]) -> msgspec.Struct:
    """Build the parameter struct from click's values. Raise `InvalidInput` naming the option."""
    hints = get_type_hints(kind)
    plain: dict[str, Any] = {}
    for name, value in given.items():
        # Left out rather than passed as empty, so that the parameter's own default applies.
        if value is None or value == ():
            continue
        hint = _without_none(hints[name])
        if get_origin(hint) is dict:
            plain[name] = key_values(name, value)
            if get_args(hint)[1] in (Any, float):
                plain[name] = {key: _scalar(text) for key, text in plain[name].items()}
            if get_args(hint)[1] is float:
                _check_numbers(name, plain[name])
        elif isinstance(value, tuple):
            inner = _plain(get_args(hint)[0])
            structured = inner not in (str, int) and get_origin(inner) is not Literal
            plain[name] = [_json(name, item) if structured else item for item in value]
        else:
            plain[name] = value
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        option = path.rstrip("`").split(".")[0].split("[")[0].replace("_", "-")
        raise InvalidInput(text, subject=option_name(option) if option else kind.__name__) from None
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=option_name(error.subject)) from None


def _check_numbers(name: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput(f"{key}={value}: {value!r} is not a number", subject=option_name(name))


@contextmanager
def options_named(kind: type[msgspec.Struct]) -> Iterator[None]:
    """Turn an error about a parameter into one about its option."""
    try:
        yield
    except InvalidInput as error:
        if error.subject not in kind.__struct_fields__:
            raise
        raise InvalidInput(error.message, subject=option_name(error.subject)) from None


def key_values(name: str, values: tuple[str, ...]) -> dict[str, Any]:
    """Parse `KEY=VALUE` texts, several in one with commas. Raise `InvalidInput` naming the option."""
    found: dict[str, Any] = {}
    for text in values:
        # A value in JSON has commas of its own.
        parts = [text] if "{" in text else text.split(",")
        for part in parts:
            key, equals, value = part.partition("=")
            if not equals or not key:
                raise InvalidInput(f"expected KEY=VALUE, got {part!r}", subject=option_name(name))
            found[key] = _json(name, value) if value[:1] in "{[" and value else value
    return found


def _scalar(text: Any) -> Any:
    """Return a number or a boolean where the text is one in JSON; any other text unchanged."""
    try:
        found = msgspec.json.decode(text) if isinstance(text, str) else text
    except msgspec.DecodeError:
        return text
    return found if isinstance(found, bool | int | float) else text


def _json(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"not JSON: {error}", subject=option_name(name)) from None
