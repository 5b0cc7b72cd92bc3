"""Start the agent process from the command line, and query a running agent."""
