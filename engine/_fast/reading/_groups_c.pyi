from engine._fast.reading._groups_py import refresh_groups

__all__ = ["refresh_groups"]
