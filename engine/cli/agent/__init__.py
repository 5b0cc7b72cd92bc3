"""Starts the agent process from the command line, and talks to a running agent."""
