"""Finds plugins by their sockets in `plugins_registry`, asks who they are, and calls them.

`watcher` finds plugins and passes them to the handler of their type (`watcher.PluginHandler`); `channel`
carries calls to one. The package touches that directory and the plugins' sockets, and imports `engine.api`,
`engine.host`, `engine.transport` and `engine.wire`.
"""
