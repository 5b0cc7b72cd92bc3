"""Read many small files of the kernel at once, into columns of numbers.

`groups` reads cgroup files (`groups.h`); `descriptors` counts the open descriptors of their processes
(`descriptors.h`). They open files, and so are separate from the kernels that do no I/O; they keep nothing
open between two calls and do not hold Python's lock while they read.
"""
