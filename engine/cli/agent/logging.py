"""Set up the agent's log: its format, its level, and the streams that it goes to.

Libraries only warn, because what they log at lower levels may be secret.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Final, TextIO

from engine.api.config import DEBUG_VERBOSITY, LoggingConfiguration

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MOST_HELD: Final = 1000


class HeldLogs(logging.Handler):
    """Hold messages; write them as text if there are too many, and at the process's end.

    `logging.handlers.MemoryHandler` would do the same, but loads sockets, queues and pickle.
    """

    def __init__(self) -> None:
        super().__init__()
        self._records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)
        # Start-up logs a few lines; a loop that logs before the format is known must not take all memory.
        if len(self._records) >= MOST_HELD:
            self.flush()

    def take(self) -> list[logging.LogRecord]:
        """Return what is held, and hold nothing any longer."""
        records, self._records = self._records, []
        return records

    def flush(self) -> None:
        target = _stream(sys.stderr, logging.Formatter(TEXT))
        for record in self.take():
            target.handle(record)


def hold_logs() -> None:
    """Keep messages until `begin_logging` knows their format; at the process's end they appear as text."""
    logging.basicConfig(handlers=[HeldLogs()])
    logging.getLogger("kubengine").setLevel(logging.INFO)


def begin_logging(
    config: LoggingConfiguration, level: int | None = None, view: logging.Handler | None = None
) -> None:
    """Write messages of `level` (None: the level of `config.verbosity`) and above, in `config.format`.

    They go to standard error, without a buffer, or to `view`. With `splitStream` only errors go to standard
    error, and everything else to standard output.
    """
    if level is None:
        level = logging.DEBUG if config.verbosity >= DEBUG_VERBOSITY else logging.INFO
    handlers = _handlers(config) if view is None else [view]
    # Messages until now were held back, because the configuration that they are about names their format.
    held = [handler for handler in logging.root.handlers if isinstance(handler, HeldLogs)]
    for handler in held:
        logging.root.removeHandler(handler)
    logging.basicConfig(handlers=handlers)
    logging.getLogger("kubengine").setLevel(level)
    for handler in held:
        for record in handler.take():
            logging.root.handle(record)
        handler.close()


class JsonFormatter(logging.Formatter):
    """Format one JSON object per message, with the fields of component-base/logs.

    `ts` is milliseconds since the epoch. Errors have no `v`; `err` and `stacktrace` describe an exception.
    """

    def format(self, record: logging.LogRecord) -> str:
        # component-base writes errors without a verbosity, and everything else with one.
        fields: dict[str, object] = {
            "ts": round(record.created * 1000, 4),
            "logger": record.name,
            "caller": f"{record.filename}:{record.lineno}",
            "msg": record.getMessage(),
        }
        if record.levelno < logging.ERROR:
            fields["v"] = DEBUG_VERBOSITY if record.levelno <= logging.DEBUG else 0
        if record.exc_info and record.exc_info[1] is not None:
            fields["err"] = str(record.exc_info[1]) or type(record.exc_info[1]).__name__
            fields["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _handlers(config: LoggingConfiguration) -> list[logging.Handler]:
    is_json = config.format == "json"
    formatter = JsonFormatter() if is_json else logging.Formatter(TEXT)
    errors = _stream(sys.stderr, formatter)
    options = config.options.json if is_json else config.options.text
    if not options.split_stream:
        return [errors]
    errors.setLevel(logging.ERROR)
    rest = _stream(sys.stdout, formatter)
    rest.addFilter(lambda record: record.levelno < logging.ERROR)
    return [rest, errors]


def _stream(stream: TextIO, formatter: logging.Formatter) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    return handler
