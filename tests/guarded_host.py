"""Run `kubengine` without changing the host, which other tests share: no kernel settings, no chains."""

from __future__ import annotations

import sys
from pathlib import Path

COMMAND = [sys.executable, str(Path(__file__))]
"""In the place of `kubengine`, or of `python -m engine.cli`."""

if __name__ == "__main__":
    from engine.cli import main
    from engine.cli.agent.start_up import lean_imports

    with lean_imports():
        from engine.cli.agent import process

    process.HostPlaces = lambda: None  # type: ignore[attr-defined]
    main()
