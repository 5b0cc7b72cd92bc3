"""From what users have to a snapshot: JSON of any shape and origin, or tables through a mapping.

`sources` opens, `json_stream` splits, `documents` says which fields count, `reader` tells documents apart and
`node_rows`, `pod_rows`, `templates` and `node_documents` gather the columns. A faulty object is left out and
counted.
"""
