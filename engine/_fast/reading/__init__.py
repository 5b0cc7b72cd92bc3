"""Read many small files of the kernel at once, into columns of numbers.

`groups` reads cgroup files (`groups.h`). It opens files, and so is separate from the kernels that do no I/O;
it keeps nothing open between two calls and does not hold Python's lock while it reads.
"""
