"""Write many numbers at once as the text of a page: no I/O.

`exposition` writes Prometheus' text format, `members` fills JSON.
"""
