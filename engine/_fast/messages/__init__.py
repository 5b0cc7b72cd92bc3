"""Provide kernels that split JSON lists and read protobuf fields, with their plain twins."""
