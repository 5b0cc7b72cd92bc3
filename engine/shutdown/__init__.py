"""Graceful node shutdown: pods end by priority, within the time that logind gives, before the machine goes
down."""
