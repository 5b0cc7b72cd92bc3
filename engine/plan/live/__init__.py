"""Read a snapshot from a running cluster, through its API server.

`contexts` finds the server and the user as kubectl does; `cluster_reader` reads lists page by page and the
documents of each node. May import `engine.cluster`, which no other part of the planner does.
"""
