"""What users write and read: Pod, Node, Quantity, both configurations, status, events and errors.

Typed structs with Kubernetes' own JSON names, their defaults and validation, and the pure sums over
them (`resources`, `qos`). Imports nothing else in `engine`; name the module that you need.
"""
