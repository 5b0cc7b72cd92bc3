"""Provide kernels for the scores of the scheduler, with their plain twins."""
