"""What a question answers: rows as Arrow tables, and how they are written down, told and compared.

Knows neither snapshots nor questions, so that every answer is shown in one way.
"""
