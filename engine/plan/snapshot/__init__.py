"""Hold a cluster as columns, and read it: nodes and pods as objects, selections, its file.

`columns` is the snapshot itself, `columnar_file` its own format, `json_writer` converts it back to kubectl's
output, `node_labels` has the labels and taints of all nodes, `faults` records what is wrong with the source
documents. Imports no other package of the planner.
"""
