"""Recorded use of containers and nodes over time, read from Prometheus or tables and kept in columns.

`history` holds the series, `codes` how a value is stored in 16 bits, `history_file` the file. `prometheus`
calls the server, `queries` says what is asked, `collect` asks it piece by piece; `usage_tables` reads CSV
and Parquet.
"""
