from engine._fast.reading._descriptors_py import count_descriptors

__all__ = ["count_descriptors"]
