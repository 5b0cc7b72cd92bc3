"""Made-up clusters with realistic distributions, for trying things out and for benches.

Entered by `cluster.synthesize`; `nodes`, `images` and `devices` make those parts.
"""
