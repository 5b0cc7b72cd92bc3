"""Compares one kind of decision each: pure modules over observations, some with memory of earlier looks."""
