"""Evaluate the CEL selectors of device classes and requests.

`common-expression-language` evaluates; this module adds what Kubernetes adds to CEL for devices: the variable
`device`, quantities, semantic versions, the functions of the strings extension that selectors use, and the
macro `cel.bind`. Source: Kubernetes v1.36, `dynamic-resource-allocation/cel`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from engine.api.errors import InvalidInput, Unavailable
from engine.api.quantity import Quantity, QuantityError
from engine.plan.claims.objects import OfferedDevice

MAX_LENGTH: Final = 10 * 1024
"""Longest expression that an API server takes, in bytes."""
QUANTITY, SEMVER = "k8s.quantity", "k8s.semver"
"""Keys under which the two types of Kubernetes stand in a map of one entry."""

_SEMVER = re.compile(  # of numbers that fit into 64 bits, as in the scheduler
    r"(0|[1-9]\d{0,18})\.(0|[1-9]\d{0,18})\.(0|[1-9]\d{0,18})"
    r"(?:-((?:0|[1-9]\d{0,18}|\d*[a-zA-Z-][\da-zA-Z-]*)(?:\.(?:0|[1-9]\d{0,18}|\d*[a-zA-Z-][\da-zA-Z-]*))*))?"
    r"(?:\+([\da-zA-Z-]+(?:\.[\da-zA-Z-]+)*))?",
    re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SelectorError(InvalidInput):
    """Raised if a selector cannot be compiled, or fails for a device, which stops the scheduler, too."""


def _quantity(text: str) -> dict[str, str]:
    return {QUANTITY: Quantity.parse(text).canonical()}


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except QuantityError:
        return False
    return True


def _semver(text: str) -> dict[str, str]:
    if not _SEMVER.fullmatch(text):
        raise ValueError(f"{text!r} is no semantic version")
    return {SEMVER: text}


def _order(value: Mapping[str, str]) -> Any:
    """Return a key that orders quantities, or versions by precedence (build metadata does not count)."""
    if QUANTITY in value:
        return Quantity.parse(value[QUANTITY])
    match = _SEMVER.fullmatch(value[SEMVER])
    assert match is not None
    numbers = tuple(int(part) for part in match.groups()[:3])
    pre = match.group(4)
    parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in pre.split(".")) if pre else ()
    return (*numbers, pre is None, parts)


def _compare(one: Mapping[str, str], other: Mapping[str, str]) -> int:
    a, b = _order(one), _order(other)
    return int(b < a) - int(a < b)


def _sum(sign: int) -> Callable[[Mapping[str, str], Any], dict[str, str]]:
    def add(one: Mapping[str, str], other: Any) -> dict[str, str]:
        amount = Quantity.from_value(other) if isinstance(other, int) else Quantity.parse(other[QUANTITY])
        first = Quantity.parse(one[QUANTITY])
        return {QUANTITY: (first + amount if sign > 0 else first - amount).canonical()}

    return add


def _part(number: int) -> Callable[[Mapping[str, str]], int]:
    return lambda value: int(value[SEMVER].split("+")[0].split("-")[0].split(".")[number])


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "semver": _semver,
    "isSemver": lambda text: _SEMVER.fullmatch(text) is not None,
    "compareTo": _compare,
    "isGreaterThan": lambda one, other: _compare(one, other) > 0,
    "isLessThan": lambda one, other: _compare(one, other) < 0,
    "sign": lambda one: _compare(one, _quantity("0")),
    "add": _sum(1),
    "sub": _sum(-1),
    "isInteger": lambda one: Quantity.parse(one[QUANTITY]).milli % 1000 == 0,
    "asInteger": lambda one: Quantity.parse(one[QUANTITY]).value,
    "asApproximateFloat": lambda one: Quantity.parse(one[QUANTITY]).milli / 1000,
    "major": _part(0),
    "minor": _part(1),
    "patch": _part(2),
    "lowerAscii": lambda text: "".join(c.lower() if c.isascii() else c for c in text),
    "upperAscii": lambda text: "".join(c.upper() if c.isascii() else c for c in text),
    "split": lambda text, by: text.split(by) if by else list(text),
    "trim": lambda text: text.strip(),
    "replace": lambda text, old, new: text.replace(old, new),
    "substring": lambda text, first, last=None: text[first:last],
    "indexOf": lambda text, part: text.find(part),
    "lastIndexOf": lambda text, part: text.rfind(part),
}


class Selectors:
    """Evaluate selectors; equal questions are evaluated once.

    Devices differ in names and addresses that few selectors mention. The answer is therefore kept by the
    values of those attributes and capacities alone whose names the expression contains.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], bool] = {}

    def matches(self, expression: str, driver: str, device: OfferedDevice) -> bool:
        """Tell whether a selector takes a device. Raise `SelectorError`."""
        attributes = {
            name: each.value
            for name, each in (device.attributes or {}).items()
            if _mentions(expression, name)
        }
        capacity = {
            name: each.value for name, each in (device.capacity or {}).items() if _mentions(expression, name)
        }
        multiple = bool(device.allow_multiple_allocations)
        key = (expression, driver, multiple, *attributes.items(), "", *capacity.items())
        found = self._known.get(key)
        if found is None:
            variable = {
                "driver": driver,
                "allowMultipleAllocations": multiple,
                "attributes": _by_domain({n: _plain(*v) for n, v in attributes.items()}, driver, expression),
                "capacity": _by_domain(
                    {n: {QUANTITY: v.canonical()} for n, v in capacity.items()}, driver, expression
                ),
            }
            found = self._known[key] = _evaluate(expression, variable, f"{driver}/{device.name}")
        return found


def _plain(kind: str, value: Any) -> Any:
    return {SEMVER: value} if kind == "version" else value


def _mentions(expression: str, name: str) -> bool:
    """Tell whether an expression can depend on an attribute; one that iterates depends on all of them."""
    return name.rpartition("/")[2] in expression or _iterates(expression)


@cache
def _iterates(expression: str) -> bool:
    return any(macro in expression for macro in (".exists", ".all(", ".filter(", ".map(", "size("))


def _by_domain(values: Mapping[str, Any], driver: str, expression: str) -> dict[str, dict[str, Any]]:
    """Group values by domain. A domain without values is an empty map, if the expression can name it."""
    grouped: dict[str, dict[str, Any]] = {domain: {} for domain in (driver, *_domains(expression))}
    for name, value in values.items():
        domain, _, identifier = name.rpartition("/")
        grouped.setdefault(domain or driver, {})[identifier] = value
    return grouped


@cache
def _domains(expression: str) -> frozenset[str]:
    return frozenset(re.findall(r"""(?:attributes|capacity)\s*\[\s*["']([^"']*)["']\s*\]""", expression))


def _evaluate(expression: str, device: dict[str, Any], named: str) -> bool:
    program = compiled(expression)
    context = _library().Context()
    for name, function in FUNCTIONS.items():
        context.add_function(name, function)
    context.add_variable("device", device)
    try:
        value = program.execute(context)
    except Exception as error:
        text = f"missing key {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise SelectorError(f"{text} (selector {_short(expression)})", subject=f"device {named}") from None
    if not isinstance(value, bool):
        raise SelectorError(
            f"expected true or false from selector {_short(expression)}, got {value!r}", subject=named
        )
    return value


@cache
def compiled(expression: str) -> Any:
    """Compile an expression. Raise `SelectorError` with its beginning."""
    if len(expression.encode()) > MAX_LENGTH:
        raise SelectorError(f"longer than {MAX_LENGTH} bytes", subject=f"selector {_short(expression)}")
    library = _library()
    try:
        return library.compile(expand_bind(expression))
    except (ValueError, RuntimeError, RecursionError) as error:
        text = " ".join(str(error).split())[:200]
        raise SelectorError(text, subject=f"selector {_short(expression)}") from None


def _library() -> Any:
    """Return the evaluator, which only clusters with device classes need. Raise `Unavailable`."""
    try:
        import cel
    except ImportError:
        raise Unavailable(
            "selectors need common-expression-language, which is not installed: "
            "pip install 'kubengine[claims]'",
            subject="claims",
        ) from None
    return cel


def _short(expression: str) -> str:
    text = " ".join(expression.split())
    return repr(text if len(text) <= 80 else text[:79] + "…")


def expand_bind(expression: str) -> str:
    """Replace the macro `cel.bind(name, value, body)` by `[value].map(name, body)[0]`, which means the same.

    Raise `ValueError` if its arguments are not closed or the name is none.
    """
    at = _outside_strings(expression, "cel.bind(")
    if at < 0:
        return expression
    first = at + len("cel.bind(")
    arguments, end = _arguments(expression, first)
    if len(arguments) != 3 or not _NAME.fullmatch(arguments[0].strip()):
        raise ValueError("cel.bind takes a name, a value and an expression")
    name, value, body = (expand_bind(each) for each in arguments)
    rest = expand_bind(expression[end + 1 :])
    return f"{expression[:at]}[{value}].map({name.strip()}, {body})[0]{rest}"


def _outside_strings(text: str, wanted: str) -> int:
    quote, at = "", 0
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        elif text.startswith(wanted, at):
            return at
        at += 1
    return -1


def _arguments(text: str, first: int) -> tuple[list[str], int]:
    """Return the arguments of a call whose parenthesis opens before `first`, and where it closes."""
    arguments: list[str] = []
    begin, depth, quote, at = first, 0, "", first
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}" and depth:
            depth -= 1
        elif char == ")":
            return [*arguments, text[begin:at]], at
        elif char == "," and not depth:
            arguments.append(text[begin:at])
            begin = at + 1
        at += 1
    raise ValueError("a parenthesis is not closed")
