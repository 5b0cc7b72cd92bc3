"""Find nodes for pods that have none or must leave theirs.

`room` tracks free amounts and chooses a node; `constraints` and `topology` are the scheduler's filters;
`place` assigns a node to every waiting pod of a snapshot, by requests alone.
"""
