"""Provide one HTTP/2 client core without sockets, for the probing loop and calls to the runtime.

`client.h` on `hpack.h` and `frames.h` is the core, which the probing loop uses directly; `_client_c` is its
Python interface. There is no twin in Python: tests compare it with the library `h2`.
"""
