"""Provide the decisions that `import engine` exports: functions over plain Kubernetes documents.

`documents` converts pods and nodes, given as dicts or typed objects, to the form that an API server would
have returned (requests default to limits, and so on), so that every answer agrees with Kubernetes.
`decisions` applies the functions of the decision packages to such documents, `questions` those of the
planner, and `probing` runs one probe. No module in `engine` imports this package.
"""
