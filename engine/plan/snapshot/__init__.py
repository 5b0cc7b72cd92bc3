"""A cluster as columns, and what can be read from it: nodes and pods as objects, selections, its file.

`columns` is the snapshot itself, `columnar_file` its own format, `json_writer` the way back to what kubectl
prints, `faults` what is wrong with the documents it came from. Imports no other room of the planner.
"""
