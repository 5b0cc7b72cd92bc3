"""Asks a running agent for a command: HTTP over its unix socket, or over its read-only port.

    @click.command()
    @agent_option
    @json_option
    def command(agent: AgentClient, as_json: bool) -> None:
        devices = agent.describe("devices")

Only the unix socket can be told to do something (`act`). Every exchange has a deadline.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click
import msgspec
from click.core import ParameterSource

from engine.api.errors import InvalidInput, KubengineError, Refused, Unavailable
from engine.cli.agent.paths import READ_ONLY_URL, default_socket
from engine.host.http.connections import UnixConnection

DEADLINE = 10.0
# The statuses that the agent's server gives these errors (`engine.server.routes`).
_FAILURES: dict[int, type[KubengineError]] = {400: InvalidInput, 404: InvalidInput, 503: Unavailable}

_BROKEN = (OSError, http.client.HTTPException)

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])


def _whole(response: http.client.HTTPResponse, taken: socket.socket) -> bytes:
    return response.read()


def _live(response: http.client.HTTPResponse, taken: socket.socket) -> http.client.HTTPResponse:
    """Prepare the response for reading line by line. It keeps its connection open, as it is the last response
    on it.
    """
    taken.settimeout(None)
    return response


class AgentClient:
    """Query a running agent.

    `address` is a socket path, an agent's root directory, or an `http://host:port`. Without one, the client
    tries the default socket, then the default read-only port. `timeout` (seconds) bounds every read and
    write.
    """

    def __init__(self, address: str | None = None, *, timeout: float = DEADLINE) -> None:
        self.timeout = timeout
        self._given = address is not None
        if address is None:
            self._addresses = [str(default_socket()), READ_ONLY_URL]
        elif address.startswith("http://") or not Path(address).is_dir():
            self._addresses = [address]
        else:
            self._addresses = [str(default_socket(address))]

    def get(self, path: str, **query: str) -> bytes:
        """Return the body of a GET.

        Raise `Unavailable` if no agent answers, and `InvalidInput` or `Refused` with the agent's message.
        """
        return self._ask("GET", path, query, _whole)

    def get_json(self, path: str, **query: str) -> Any:
        """Return the decoded JSON body of a GET. Raise as `get` does."""
        return msgspec.json.decode(self.get(path, **query))

    def lines(self, path: str, **query: str) -> Iterator[bytes]:
        """Yield the lines of a GET as they arrive, without a time limit; `timeout` bounds only the wait for
        the response to begin.

        Raise as `get` does, and `Unavailable` when the connection to the agent is lost.
        """
        with closing(self._ask("GET", path, query, _live)) as response, suppress(*_BROKEN):
            yield from response
        raise Unavailable("the agent has ended the connection")

    def describe(self, component: str, **query: str) -> Any:
        """Return an agent component's description of its state."""
        return self.get_json(f"/kubengine/{quote(component)}", **query)

    def act(self, component: str, action: str, **query: str) -> Any:
        """Send a command to a component of the agent over the unix socket. Raise as `get` does."""
        return msgspec.json.decode(
            self._ask("POST", f"/kubengine/{quote(component)}/{quote(action)}", query, _whole)
        )

    def _ask(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        read: Callable[[http.client.HTTPResponse, socket.socket], _T],
    ) -> _T:
        target = f"{path}?{urlencode(query)}" if query else path
        failures: list[str] = []
        # The read-only port takes no commands: its refusal would hide why the socket cannot be reached.
        given = self._addresses if method == "GET" or self._given else self._addresses[:1]
        for address in given:
            connection = self._connection(address)
            try:
                connection.connect()
                # Taken now: http.client gives the socket away with a response after which the connection
                # ends.
                taken = connection.sock
                connection.request(method, target)
                response = connection.getresponse()
                if response.status == 200:
                    return read(response, taken)
                body = response.read()
            except _BROKEN as error:
                failures.append(
                    f"{address} ({getattr(error, 'strerror', None) or error or type(error).__name__})"
                )
                continue
            finally:
                connection.close()
            raise _failure(response.status, body, address)
        hint = "" if self._given else "; `--agent PATH` names another socket or root directory"
        raise Unavailable(f"no agent answers: tried {', '.join(failures)}{hint}")

    def _connection(self, address: str) -> http.client.HTTPConnection:
        if address.startswith("http://"):
            parts = urlsplit(address)
            return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=self.timeout)
        return UnixConnection(address, self.timeout)


def _failure(status: int, body: bytes, address: str) -> KubengineError:
    try:
        message = str(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body.decode(errors="replace").strip()[:500] or f"HTTP status {status}"
    return _FAILURES.get(status, Refused)(message, subject=f"agent at {address}")


def _chosen(context: click.Context, option: click.Parameter, value: str | None) -> AgentClient:
    """Return the agent that the command's own option names, else the one given to its parent group."""
    # A default or KUBENGINE_AGENT of the subcommand must not override what was typed for its group.
    above = context.parent.params.get("agent") if context.parent is not None else None
    if (
        isinstance(above, AgentClient)
        and context.get_parameter_source("agent") is not ParameterSource.COMMANDLINE
    ):
        return above
    return AgentClient(value)


def agent_option(function: _F) -> _F:
    """Add `--agent PATH|URL`, passed to the command as `agent: AgentClient`. Subcommands inherit a group's
    value.
    """
    return click.option(
        "--agent",
        metavar="PATH|URL",
        envvar="KUBENGINE_AGENT",
        callback=_chosen,
        help=f"The agent's socket, root directory or http URL.  [default: {default_socket()}, "
        f"then {READ_ONLY_URL}]",
    )(function)


def json_option(function: _F) -> _F:
    """Add `--json`, passed to the command as `as_json: bool`. Subcommands inherit a group's value."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=lambda context, _option, value: (
            value or bool(context.parent and context.parent.params.get("as_json"))
        ),
        help="Print JSON instead of a table.",
    )(function)


def print_json(value: Any) -> None:
    """Print JSON, formatted for people on a terminal and for programs in a pipe."""
    click.echo(json.dumps(value, indent=2, sort_keys=False))
