"""Keeps what happens on a node in a compact columnar record, bounded by size and age, and reads it again.

`blocks` encodes rows (pure), `writer` appends them once a second, `reader` reads a directory, and `why`
explains from the rows what became of a pod.
"""
