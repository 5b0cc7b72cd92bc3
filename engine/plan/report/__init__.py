"""The HTML report of an answer: one self-contained file with plots. `page` puts it together, `plots` chooses
what to draw, `svg` draws. Touches only the file that it is told to write.
"""

from engine.plan.report.page import render, write_report

__all__ = ["render", "write_report"]
