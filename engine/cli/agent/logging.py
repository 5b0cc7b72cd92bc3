"""Where an agent's own words go, and that libraries keep theirs: what passes them may be secret."""

from __future__ import annotations

import logging


def begin_logging(level: int, view: logging.Handler | None = None) -> None:
    """Say what is as grave as `level` on standard error, or to `view`; libraries only warn."""
    if view is None:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    else:
        logging.basicConfig(handlers=[view])
    logging.getLogger("kubengine").setLevel(level)
