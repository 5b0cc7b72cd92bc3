"""One pod: its life as a table of states, and what of it is kept on disk."""
