"""`python -m engine.cli` is `kubengine`."""

from engine.cli import main

main()
