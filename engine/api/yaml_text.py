"""YAML text to plain data, within bounds: no dates, no duplicate keys, no bombs.

The bounds are checked on the event stream before anything is built, because a deep document overflows
the C stack of the parser's composer and nested aliases grow exponentially once they are opened.
"""

from __future__ import annotations

from typing import Any

import yaml

from engine.api.errors import InvalidInput

MAX_DEPTH = 100
MAX_NODES = 1_000_000


class _Loader(yaml.CSafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value not in seen:
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
            continue
        raise InvalidInput(f"line {key.start_mark.line + 1}: field {key.value!r} is given twice")
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_yaml(text: str) -> list[Any]:
    """Every document of a text that is not empty. Raises `InvalidInput` with the line."""
    try:
        _check_bounds(text)
        return [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise InvalidInput(f"not valid YAML: {where}{error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidInput(f"not valid YAML: {' '.join(str(error).split())[:200]}") from None


def _check_bounds(text: str) -> None:
    """Depth, and the number of nodes once every alias is opened."""
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
        elif isinstance(event, yaml.AliasEvent):
            nodes += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
        if len(open_nodes) > MAX_DEPTH:
            raise InvalidInput(f"{_line(event)}nested deeper than {MAX_DEPTH} levels")
        if nodes > MAX_NODES:
            raise InvalidInput(f"{_line(event)}more than {MAX_NODES} values once its aliases are opened")


def _line(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}: " if event.start_mark is not None else ""
