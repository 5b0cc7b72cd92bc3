"""Read users' files into a snapshot: JSON of any shape and origin, or tables through a mapping.

`sources` opens, `json_stream` splits, `documents` names the fields that count, `reader` identifies
documents, and `node_rows`, `pod_rows`, `templates` and `node_documents` collect the columns. A faulty object
is left out and counted.
"""
