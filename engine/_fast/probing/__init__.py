"""Provide the native probe loop, and the rules that it runs by.

`_loop_c` is the loop: sockets and timers on a thread that never runs Python (`run.h`, `connect.h`,
`table.h`, `request.h`, `text.h`). Its decisions are kernels of their own, without I/O, which tests compare
with plain twins: `_state` (when to probe, and the result that an outcome publishes), `_wheel` (timers),
`_response` (HTTP answers and redirects), `_grpc` (answers to health checks and execs). Touches sockets, epoll
and the clock.
"""
