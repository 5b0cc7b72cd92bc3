"""Compute what a new kubelet configuration does to the nodes of a snapshot: `amounts` of a node under a
configuration, `readmission` of its pods, and `compared` answers of other questions. Pure.
"""
