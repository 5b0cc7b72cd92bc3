"""States which parts of a node the server needs, as protocols."""
