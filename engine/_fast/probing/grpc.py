"""The gRPC health check as a probe makes it: its request, and the reader of the answer."""

from engine._fast.probing._grpc_c import GrpcAnswer
from engine._fast.probing._grpc_py import ANSWERED, GET, HEALTH, MORE

__all__ = ["ANSWERED", "GET", "HEALTH", "MORE", "GrpcAnswer"]
