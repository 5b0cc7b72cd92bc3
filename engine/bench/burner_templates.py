"""Render the templates of kube-burner's workload files: the part of Go's text/template that they use.

Pure but for the random text of `randAlphaNum` and `randInt`.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.api.errors import InvalidInput

Variables = Mapping[str, Any]

_ACTION: Final = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_WORD: Final = re.compile(r'"[^"]*"|[^\s|]+|\|')
_MISSING: Final = object()
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "eq": lambda one, other: bool(one == other),
    "ne": lambda one, other: bool(one != other),
    "gt": lambda one, other: bool(one > other),
    "lt": lambda one, other: bool(one < other),
}


@dataclass(slots=True)
class _Branch:
    """Hold one open `if`: whether its text is shown, and whether its `else` would be."""

    shown: bool
    otherwise: bool
    seen_else: bool = field(default=False)


def render(text: str, variables: Variables, *, subject: str, strict: bool = True) -> str:
    """Return the text with its actions carried out.

    A variable without a value is an error if `strict`, as in kube-burner's object templates, and empty
    otherwise, as in its workload files. Raises `InvalidInput` that names `subject` for it, and for an
    action that is not known here.
    """
    parts: list[str] = []
    branches: list[_Branch] = []
    at = 0
    trimmed = False
    for action in _ACTION.finditer(text):
        before = text[at : action.start()]
        at = action.end()
        if trimmed:
            before = before.lstrip()
        if action.group(1):
            before = before.rstrip()
        trimmed = bool(action.group(3))
        shown = all(branch.shown for branch in branches)
        if shown:
            parts.append(before)
        try:
            parts.append(_carried_out(action.group(2), variables, branches, shown, strict))
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"the action {action.group()}: {error}", subject=subject) from None
    if branches:
        raise InvalidInput("an if has no end", subject=subject)
    rest = text[at:]
    return "".join(parts) + (rest.lstrip() if trimmed else rest)


def _carried_out(
    action: str, variables: Variables, branches: list[_Branch], shown: bool, strict: bool
) -> str:
    words = _WORD.findall(action)
    if words[:1] == ["if"]:
        truth = shown and bool(_value(words[1:], variables, strict=False))
        branches.append(_Branch(truth, shown and not truth))
        return ""
    if words in (["else"], ["end"]):
        if not branches or (words == ["else"] and branches[-1].seen_else):
            raise ValueError(f"no if is open for this {words[0]}")
        if words == ["end"]:
            branches.pop()
        else:
            branches[-1].shown, branches[-1].seen_else = branches[-1].otherwise, True
        return ""
    return _text(_value(words, variables, strict)) if shown else ""


def _value(words: list[str], variables: Variables, strict: bool) -> Any:
    """Evaluate a pipeline: each command gets the result of the one before as its last argument."""
    result: Any = _MISSING
    while words:
        end = words.index("|") if "|" in words else len(words)
        command, words = words[:end], words[end + 1 :]
        if not command:
            raise ValueError("a command is empty")
        arguments = [] if result is _MISSING else [result]
        result = _command(command, arguments, variables, strict)
    if result is _MISSING:
        raise ValueError("it is empty")
    return result


def _command(command: list[str], piped: list[Any], variables: Variables, strict: bool) -> Any:
    name = command[0]
    values = [_operand(word, variables, strict) for word in command[1:]] + piped
    if not name.isidentifier() or name in ("true", "false"):
        if values:
            raise ValueError(f"{name} takes no arguments")
        return _operand(name, variables, strict)
    if name == "toJson" and len(values) == 1:
        return json.dumps(values[0])
    if name == "randAlphaNum" and len(values) == 1:
        return "".join(random.choices(string.ascii_letters + string.digits, k=int(values[0])))
    if name == "randInt" and len(values) == 2:
        return random.randrange(int(values[0]), int(values[1]))
    if name in ("and", "or") and values:
        return all(values) if name == "and" else any(values)
    if name == "not" and len(values) == 1:
        return not values[0]
    if name in _COMPARISONS and len(values) == 2:
        return _COMPARISONS[name](values[0], values[1])
    raise ValueError(f"the function {name} with {len(values)} arguments is not known here")


def _operand(word: str, variables: Variables, strict: bool) -> Any:
    if word.startswith("."):
        if word[1:] in variables:
            return variables[word[1:]]
        if strict:
            raise ValueError(f"{word} has no value; pass --var {word[1:]}=VALUE")
        return None
    if word.startswith('"'):
        return word[1:-1]
    if word in ("true", "false"):
        return word == "true"
    return int(word)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError("it is a structure; only toJson can show it")
