"""What `import engine` offers of the decisions: functions that take plain Kubernetes documents.

`documents` brings pods and nodes, as dicts or typed objects, into the form that an API server would have
given them (requests default to limits, and so on), so that every answer is the one that Kubernetes gives.
`decisions` has the functions of the decision packages over such documents, `questions` the planner's, and
`probing` runs one probe. Nothing in `engine` imports this package.
"""
