"""Takes the decisions of a live kubelet a second time, and compares: read-only, next to it.

`watch` reads the kubelet, the runtime and the machine; `kinds` has one pure module for each kind of decision;
`ledger` counts agreement and keeps the differences with both reasons; `report` shows them.
"""
