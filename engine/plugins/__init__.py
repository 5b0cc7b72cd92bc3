"""Plugins that show themselves by a socket in `plugins_registry`: found, asked who they are, spoken to.

`watcher` finds them and tells the room whose kind they are (`watcher.PluginHandler`); `channel` carries calls
to one. May touch that directory and the sockets that plugins name, `engine.api`, `engine.host`,
`engine.transport` and `engine.wire`.
"""
