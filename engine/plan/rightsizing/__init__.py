"""New requests for workloads, and what would have happened under them in the recorded time.

`workloads` finds the workload of each pod, `recommended` reads requests of other tools, `proposals`
computes or matches new requests, `resized` makes the snapshot that has them, and `replay` adds up what its
pods used.
"""
