"""Call the query API of Prometheus; Thanos, Mimir, Cortex and VictoriaMetrics speak the same one."""

from __future__ import annotations

import base64
import gzip
import math
import re
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit
from urllib.request import (
    HTTPRedirectHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

import msgspec

from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.host.http.bodies import read_body
from engine.host.http.handlers import deadline_handlers

MOST_BYTES: Final = 512 << 20
"""Bytes of one response after decompression."""
MOST_ERROR_BYTES: Final = 1 << 20
TRIES: Final = 4
"""How often a server that is busy or fails is asked; the waits between are 1, 2 and 4 s."""
BUSY: Final = (429, 500, 502, 503, 504)
CREDENTIALS: Final = (401, 403)


class RangeSeries(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, float]] = []
    value: tuple[float, float] | None = None


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[RangeSeries]


class _Answer(msgspec.Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: list[str] | None = None


class _Fault(msgspec.Struct):
    error: str = ""


# Older releases of VictoriaMetrics begin a refusal with the whole request.
_OWN_REQUEST = re.compile(r'^remoteAddr: "[^"]*"; requestURI: \S*; ')
# Values are numbers in strings; with strict=False they become floats while they are decoded.
_answers = msgspec.json.Decoder(_Answer, strict=False)
_faults = msgspec.json.Decoder(_Fault)


class TooMuch(Refused):
    """Raised if a query asks for more than the server or this reader accepts at once: ask for less."""


@dataclass(frozen=True)
class ServerAccess:
    """Hold the address of a server and the credentials for it, from the command's options."""

    url: str
    bearer_token_file: str = ""
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


class Prometheus:
    """Query one server. `timeout` is the deadline of one query in seconds.

    Queries raise `TooMuch`, `Refused` for an error of the query or of the credentials, and `Unavailable` if
    the server cannot be reached. `clock_offset` is how far the server's clock is ahead of this one, in
    seconds.
    """

    def __init__(
        self, access: ServerAccess, *, timeout: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        parts = urlsplit(access.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput("expected http://HOST:PORT or https://HOST:PORT/PATH", subject=access.url)
        host = parts.netloc.rpartition("@")[2]
        self.address = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self.clock_offset = 0.0
        self.warnings: list[str] = []
        self._access = access
        self._user = (unquote(parts.username or ""), unquote(parts.password or ""))
        self._timeout, self._sleep = timeout, sleep
        self._opener = self._made_opener()

    def range(self, query: str, start: int, end: int, step: int) -> list[RangeSeries]:
        """Return the values of a query at each `step` from `start` to `end`, both included, in Unix
        seconds.
        """
        return self._ask("query_range", {"query": query, "start": start, "end": end, "step": step})

    def number(self, query: str, at: int) -> float:
        """Return the only value of a query at a moment; 0 if it has none that is an amount."""
        found = self._ask("query", {"query": query, "time": at})
        value = found[0].value[1] if found and found[0].value else 0.0
        return value if 0 <= value < math.inf else 0.0

    def _ask(self, endpoint: str, parameters: Mapping[str, Any]) -> list[RangeSeries]:
        data = b""
        for attempt in range(TRIES):
            try:
                data = self._get(f"{self.address}/api/v1/{endpoint}?{urlencode(parameters)}")
                break
            except Unavailable:
                if attempt == TRIES - 1:
                    raise
                self._sleep(2.0**attempt)
        try:
            # Prometheus writes +Inf, which the decoder does not take for a number.
            answer = _answers.decode(data.replace(b'"+Inf"', b'"inf"'))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"does not answer as Prometheus does: {error}", subject=self.address) from None
        self.warnings += [text for text in answer.warnings or () if text not in self.warnings]
        if answer.status != "success" or answer.data is None:
            raise Refused(answer.error or "answered without data", subject=self.address)
        return answer.data.result

    def _get(self, url: str) -> bytes:
        request = Request(url, headers=self._headers())  # noqa: S310
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                self._note_clock(answer.headers.get("Date"))
                data = read_body(answer, MOST_BYTES)
                if len(data) <= MOST_BYTES and answer.headers.get("Content-Encoding") == "gzip":
                    data = _inflated(data)
                if len(data) > MOST_BYTES:
                    raise TooMuch(f"answered more than {MOST_BYTES >> 20} MiB", subject=self.address)
                return data
        except HTTPError as error:
            with error:
                raise self._refusal(error, self._error_body(error)) from None
        except TimeoutError:
            raise TooMuch(f"no answer within {self._timeout:g} s", subject=self.address) from None
        except (URLError, HTTPException, OSError, EOFError, zlib.error) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, TimeoutError):
                raise TooMuch(f"no answer within {self._timeout:g} s", subject=self.address) from None
            if isinstance(cause, ssl.SSLCertVerificationError):
                said = f"its certificate is not trusted ({cause.verify_message}); name its CA with --ca-file"
                raise Refused(said, subject=self.address) from None
            raise Unavailable(f"cannot be reached: {cause}", subject=self.address) from None

    def _error_body(self, error: HTTPError) -> bytes:
        """Return what there is of an error's body, which may break off; its status counts anyway."""
        try:
            return read_body(error, MOST_ERROR_BYTES)
        except (HTTPException, OSError):
            return b""

    def _refusal(self, error: HTTPError, data: bytes) -> Refused | Unavailable:
        try:
            if error.headers.get("Content-Encoding") == "gzip":
                data = _inflated(data)
            said = _faults.decode(data).error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError, EOFError, zlib.error):
            said = ""
        text = _OWN_REQUEST.sub("", data.decode(errors="replace"))
        said = said or text[:200].strip() or str(error.reason)
        if error.code in CREDENTIALS:
            # Mimir and Cortex say so to a query without a tenant.
            tenant = "no org id" in said
            give = "--bearer-token-file, or --username and --password-file"
            give = "the tenant with --header X-Scope-OrgID=TENANT" if tenant else give
            return Refused(f"{error.code} {error.reason}: {said}; give {give}", subject=self.address)
        # 422 and 503 carry the limits of samples and time, 413 those of Mimir and of proxies.
        if error.code in (413, 422) or "too many samples" in said or "timed out" in said or "exceed" in said:
            return TooMuch(said, subject=self.address)
        if error.code in BUSY:
            return Unavailable(f"{error.code} {error.reason}: {said}", subject=self.address)
        # VictoriaMetrics answers 400 at a path that it does not have.
        if error.code == 404 or said.startswith("unsupported path"):
            path = urlsplit(self.address).path or "/"
            said = f"{error.code}: has no query API at {path}; the URL may have another path"
        return Refused(said, subject=self.address)

    def _note_clock(self, date: str | None) -> None:
        if date:
            try:
                self.clock_offset = parsedate_to_datetime(date).timestamp() - time.time()
            except (ValueError, OverflowError, TypeError, OSError):  # a year of a hundred digits, for one
                return

    def _headers(self) -> dict[str, str]:
        access = self._access
        found = {"Accept-Encoding": "gzip", "User-Agent": "kubengine-plan", **access.headers}
        if access.bearer_token_file:
            # Read for each query, because a mounted token is replaced before it expires.
            found["Authorization"] = f"Bearer {_secret(access.bearer_token_file, '--bearer-token-file')}"
        user, password = self._user
        user = access.username or user
        if access.password_file:
            password = _secret(access.password_file, "--password-file")
        if user:
            encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
            found["Authorization"] = f"Basic {encoded}"
        return found

    def _made_opener(self) -> OpenerDirector:
        access = self._access
        context = ssl.create_default_context()
        try:
            if access.ca_file:
                context = ssl.create_default_context(cafile=access.ca_file)
            if access.cert_file:
                context.load_cert_chain(access.cert_file, access.key_file or None)
        except (OSError, ssl.SSLError) as error:
            name = access.cert_file if access.cert_file else access.ca_file
            raise InvalidInput(f"cannot be used: {error}", subject=name) from None
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return build_opener(ProxyHandler(), *deadline_handlers(context), _SameServer(self.address))


class _SameServer(HTTPRedirectHandler):
    """Follow redirects on one server only: urllib would send the credentials along to any other."""

    def __init__(self, address: str) -> None:
        self._address = address

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        before, after = urlsplit(self._address), urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            place = urlunsplit((after.scheme, after.netloc.rpartition("@")[2], "", "", ""))
            raise Refused(
                f"redirects to another server, {place}, which gets no credentials; give its URL to ask it",
                subject=self._address,
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _secret(path: str, option: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}", subject=option) from None


def _inflated(data: bytes) -> bytes:
    """Decompress at most one byte more than is accepted."""
    import io

    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return file.read(MOST_BYTES + 1)
