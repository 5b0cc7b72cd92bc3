"""Reading many small files of the kernel at once, into columns of numbers.

`groups` reads what cgroups say of themselves (`groups.h`). It opens files, and so lives beside the
kernels that do no I/O; it keeps nothing open between two calls and holds no lock of Python while it reads.
"""
