"""One HTTP/2 client core without sockets, for the probing loop, calls to the runtime and whoever asks next.

`client.h` on `hpack.h` and `frames.h` is the core, which the probing loop uses as it is; `_client_c` is its
face for Python. There is no twin in Python: the library `h2` is what tests hold it against.
"""
