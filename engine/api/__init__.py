"""Types of what users write and read: Pod, Node, Quantity, both configurations, status, events and errors.

They are structs with Kubernetes' JSON names, their defaults and validation, and the pure sums over them
(`resources`, `qos`). The package imports nothing else in `engine`; import from the module that you need.
"""
