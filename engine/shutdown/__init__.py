"""Graceful node shutdown: ends pods by priority, within the time that logind allows, before the machine goes
down.
"""
