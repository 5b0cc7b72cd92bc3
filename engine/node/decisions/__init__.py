"""Publishes the decisions of the agent over HTTP and in a file."""
