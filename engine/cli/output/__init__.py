"""Render amounts, tables and the live view on a terminal."""
