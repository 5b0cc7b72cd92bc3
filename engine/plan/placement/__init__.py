"""Schedule pods that have no node or must leave theirs, as the scheduler of Kubernetes v1.36 does.

`filters` and `topology` are the filter plugins, `node_capacity` compares amounts, and `scores` and `spread`
are the score plugins. `scheduler` schedules one pod by these. `draining`, `consolidate` and `preemption` use
it for many pods. `place` assigns a node to every waiting pod of a trace by requests alone. `fit` is the
admission of a kubelet, on every node at once.
"""
