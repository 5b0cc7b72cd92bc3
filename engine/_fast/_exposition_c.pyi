from engine._fast._exposition_py import exposition

__all__ = ["exposition"]
