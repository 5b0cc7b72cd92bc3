"""What touches the machine and is no room's own: files, sockets, mounts, inotify, programs, background tasks.

Every room that acts may use it; it knows nothing of pods, runtimes or clusters, and imports only `engine.api`
(errors) and `engine.metrics`. Deciding files never import it.
"""
