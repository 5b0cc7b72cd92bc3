"""Generate clusters with realistic distributions, for experiments and benches.

`cluster.synthesize` is the entry point; `nodes`, `images` and `devices` generate those parts.
"""
