"""One file for the small records that the agent reads back after a restart."""
