from engine._fast.writing._exposition_py import exposition

__all__ = ["exposition"]
