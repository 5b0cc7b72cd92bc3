from engine._fast.reading._groups_py import read_groups

__all__ = ["read_groups"]
