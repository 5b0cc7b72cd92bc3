"""Touches the machine for several subsystems: files, sockets, mounts, inotify, programs, background tasks.

Every acting package may use it. It knows nothing of pods, runtimes or clusters, and imports only
`engine.api` (errors) and `engine.metrics`. Pure modules never import it.
"""
