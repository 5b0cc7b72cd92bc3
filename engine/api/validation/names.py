"""The shapes of names, numbers and paths that fields share."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from engine.api.resources import is_qualified_name

NO_API: Final = "needs an API server (or a driver), which this node does not have"
LARGEST_INT32: Final = 2**31 - 1

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_PORT_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_ENVIRONMENT_NAME = re.compile(r"[ -<>-~]+")


def is_label(text: str) -> bool:
    """Return whether the text is a DNS label."""
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Return whether the text is a DNS subdomain."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def is_port(number: int) -> bool:
    return 0 < number < 65536


def is_port_name(text: str) -> bool:
    # IANA_SVC_NAME (RFC 6335, section 5.1): at least one letter, no two hyphens side by side.
    return len(text) <= 15 and _PORT_NAME.fullmatch(text) is not None and not text.replace("-", "").isdigit()


def is_address(text: str) -> bool:
    """Return whether the text is an IP address: no zone, no leading zeros, no IPv4 in the form of IPv6."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    # Go parses `::ffff:1.2.3.4` to an IPv4 address, whose text form differs: the strict parser refuses it.
    return "%" not in text and (address.version == 4 or address.ipv4_mapped is None)


def is_label_value(text: str) -> bool:
    return len(text) <= 63 and _LABEL_VALUE.fullmatch(text) is not None


def is_environment_name(text: str) -> bool:
    """Return whether the text is printable ASCII without `=`."""
    return _ENVIRONMENT_NAME.fullmatch(text) is not None


def address(text: str, field: str) -> Iterator[str]:
    if not is_address(text):
        yield f"{field}: expected an IP address, got {text[:64]!r}"


def dns_label(text: str, field: str) -> Iterator[str]:
    if not is_label(text):
        yield f"{field}: expected a DNS label, got {text[:64]!r}"


def dns_subdomain(text: str, field: str) -> Iterator[str]:
    if not is_subdomain(text):
        yield f"{field}: expected a DNS subdomain (lower case, digits, - and .), got {text[:64]!r}"


def qualified_name(text: str, field: str) -> Iterator[str]:
    if not is_qualified_name(text):
        yield f"{field}: expected a name with an optional DNS prefix (example.com/name), got {text[:64]!r}"


def one_of(text: str | None, choices: Collection[str], field: str) -> Iterator[str]:
    """Check that the text is a choice. None, and an empty text that is a choice, are absent fields."""
    if text is not None and text not in choices:
        *others, last = [choice for choice in choices if choice]
        expected = f"{', '.join(others)} or {last}" if others else last
        yield f"{field}: expected {expected}, got {text[:64]!r}"


def in_range(number: int | None, least: int, most: int, field: str) -> Iterator[str]:
    if number is not None and not least <= number <= most:
        yield f"{field}: expected {least} to {most}, got {number}"


def file_mode(mode: int | None, field: str) -> Iterator[str]:
    if mode is not None and not 0 <= mode <= 0o777:
        yield f"{field}: expected 0 to 0777 (511), got {mode}"


def labels(given: Mapping[str, str] | None, field: str) -> Iterator[str]:
    for key, value in (given or {}).items():
        yield from qualified_name(key, field)
        yield from label_value(value, f"{field}.{key[:64]}")


def label_value(text: str, field: str) -> Iterator[str]:
    if not is_label_value(text):
        yield f"{field}: {text[:64]!r} is not a label's value"


def no_backsteps(path: str, field: str) -> Iterator[str]:
    if ".." in path.split("/"):
        yield f"{field}: expected a path without .., got {path[:64]!r}"


def below(path: str, field: str) -> Iterator[str]:
    """Check that a path is relative and stays below its start."""
    if path.startswith("/") or ".." in path.split("/"):
        yield f"{field}: expected a relative path without .., got {path[:64]!r}"


def file_below(path: str, field: str) -> Iterator[str]:
    """Check the path of a file in a volume, which reserves names that begin with `..`."""
    if not path:
        yield f"{field}: expected a path"
    # Such names are those of the atomic writer: `..data` and its directories.
    elif path.startswith(".."):
        yield f"{field}: expected a path that does not begin with .., got {path[:64]!r}"
    else:
        yield from below(path, field)
