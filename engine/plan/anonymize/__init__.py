"""Replace the names of a snapshot, so that it may be given away."""
