"""Store image archives and layers for the embedded runtime."""
