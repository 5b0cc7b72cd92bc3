"""Compute what eviction does on many nodes at once: `eviction_course` runs the agent's passes over computed
amounts, `pods_in_order` holds the pods in the order in which each node evicts them.
"""
