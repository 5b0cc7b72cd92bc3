"""Play a node's record again, also under another configuration or with more pods: `recorded` reads it,
`pressure` and `admission` repeat the decisions, `replay` plays them in order, `compared` says what differs,
and `answer` builds the rows.
"""
