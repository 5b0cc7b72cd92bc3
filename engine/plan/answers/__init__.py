"""Represent answers as rows of Arrow tables, and write, explain and compare them.

Depends on neither snapshots nor questions, so that every answer is shown in one way.
"""
