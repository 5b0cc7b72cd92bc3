"""Write the HTML report of an answer: one self-contained file with plots.

`page` assembles it, `plots` chooses what to draw, `svg` draws. Writes only the requested file.
"""

from engine.plan.report.page import render, write_report

__all__ = ["render", "write_report"]
