"""Models one pod: its life as a table of states, and the records of it on disk."""
