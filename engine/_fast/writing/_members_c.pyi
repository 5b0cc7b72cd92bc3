from engine._fast.writing._members_py import filled

__all__ = ["filled"]
