"""Parses YAML to plain data like the kubelet's YAML reader, within limits.

That reader (go-yaml v2 behind sigs.k8s.io/yaml) is between YAML 1.1 and 1.2: `yes` and `on` are booleans,
`017` and `0o17` are fifteen, `12:30:45` and dates are strings, keys become strings, and of two equal keys
the last counts. Limits are checked on the event stream before anything is built, because a deep document
overflows the C stack of the parser's composer, and nested aliases grow exponentially when they are expanded.
"""

from __future__ import annotations

import re
from math import isinf
from typing import Any

import yaml

from engine.api.errors import InvalidInput

MAX_DEPTH = 100
MAX_NODES = 1_000_000
_MOST_DIGITS = 80
_INDENTATION = re.compile(r"^[ \t]*(?:[-?:][ \t]+)*", re.MULTILINE)
"""The begin of a line up to its first scalar."""
_UNBOUND = re.compile("[*\r\x85\u2028\u2029]")
"""An alias, and the breaks of lines that `_INDENTATION` does not know."""

_TRUE = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_FALSE = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_DIGITS = "0123456789"
_SCALARS = (
    ("bool", "|".join((*_TRUE, *_FALSE)), "yYnNtTfFoO"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(?:0[bB][01_]+|0[oO][0-7_]+|0[xX][0-9a-fA-F_]+|[0-9][0-9_]*)", f"-+{_DIGITS}"),
    (
        "float",
        r"[-+]?(?:\.[0-9_]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        f"-+.{_DIGITS}",
    ),
    ("merge", "<<", "<"),
)


class _Loader(yaml.CSafeLoader):
    # Empty: PyYAML's own resolvers are those of YAML 1.1, with dates and base 60.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def _boolean(loader: _Loader, node: yaml.ScalarNode) -> bool:
    return node.value in _TRUE


def _number(loader: _Loader, node: yaml.ScalarNode) -> int | float | str:
    """Return a 64-bit integer, else a double, else the text, if it is too large for both."""
    text = node.value.replace("_", "")
    # `int` takes quadratic time, and refuses more than 4,300 digits.
    if len(text) > _MOST_DIGITS:
        return str(node.value)
    try:
        whole = _integer(text)
    except ValueError:
        return _float(loader, node)
    return whole if -(2**63) <= whole < 2**64 else _float(loader, node)


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] in _DIGITS
    return int(text, 8 if octal else 0)


def _float(loader: _Loader, node: yaml.ScalarNode) -> int | float | str:
    """Return a float; a whole number such as `1.0` or `1e3` becomes an integer, like JSON's 1 and 1000.

    What exceeds a double is text.
    """
    text = node.value.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")
    if len(text) > _MOST_DIGITS:
        return str(node.value)
    number = float(text)
    if isinf(number) and "inf" not in text:
        return str(node.value)
    return int(number) if number.is_integer() and abs(number) < 2**63 else number


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    # Merge keys (`<<`) first; of two equal keys the later pair counts, which a dict does by itself.
    loader.flatten_mapping(node)
    pairs = loader.construct_pairs(node, deep=True)
    return {_key(key, node): value for key, value in pairs}


def _key(key: Any, node: yaml.MappingNode) -> str:
    # Before integers, since a bool is one in Python: `on: x` has the key "true", as for sigs.k8s.io/yaml.
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int):
        return str(key)
    if isinstance(key, float):
        return f"{key:g}"
    line = node.start_mark.line + 1
    raise InvalidInput(f"line {line}: a key is {type(key).__name__}; expected text or a number")


_Loader.add_constructor("tag:yaml.org,2002:bool", _boolean)
_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_yaml(text: str) -> list[Any]:
    """Parse every document of a non-empty text. Raises `InvalidInput` with the line."""
    try:
        if not is_small(text):
            _check_bounds(text)
        return [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise InvalidInput(f"not valid YAML: {where}{error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidInput(f"not valid YAML: {' '.join(str(error).split())[:200]}") from None


def is_small(text: str) -> bool:
    """Tell whether a text keeps within the limits whatever it says, which most manifests do.

    A node takes half a character or more, unless aliases repeat it. A block begins to the right of the block
    around it, only a list may begin below its key, and every other level has a bracket or a brace.
    """
    if _UNBOUND.search(text) or 2 * len(text) + 2 > MAX_NODES:
        return False
    columns = 1 + max(map(len, _INDENTATION.findall(text)), default=0)
    return 2 * columns + text.count("[") + text.count("{") <= MAX_DEPTH


def _check_bounds(text: str) -> None:
    """Check the depth, and the number of nodes with every alias expanded."""
    open_nodes: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    nodes = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, nodes))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = nodes - before
        # An anchor that is still open is not in `sizes`: the parser refuses such a recursive alias itself.
        elif isinstance(event, yaml.AliasEvent):
            nodes += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
        if len(open_nodes) > MAX_DEPTH:
            raise InvalidInput(f"{_line(event)}nested deeper than {MAX_DEPTH} levels")
        if nodes > MAX_NODES:
            raise InvalidInput(f"{_line(event)}more than {MAX_NODES} values after expanding its aliases")


def _line(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}: " if event.start_mark is not None else ""
