"""Find nodes for pods that have none or must leave theirs.

`node_capacity` tracks free amounts and chooses a node; `constraints` and `topology` are the filters of the
scheduler, `scores` and `spread` its scores; `moves` moves single pods by these, `consolidate` empties nodes
that are not needed, and `place` assigns a node to every waiting pod of a snapshot, by requests alone.
"""
