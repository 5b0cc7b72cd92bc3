"""Records, references and errors of the embedded runtime, shared by all its parts."""
