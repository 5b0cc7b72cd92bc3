"""Provide kernels: compiled code over columns, each with a twin in plain Python that states its rule.

For an idea `x` there are three files: `_x_c.pyx` (compiled), `_x_py.py` (twin) and `x.py`, which selects one
through `_select`. Kernels read arrays and return decisions; they do no I/O, know nothing of gRPC or files,
and allocate no Python object per row. Touches NumPy only.

The probe loop has sockets and a thread, and so a separate package: `probing`.
"""
