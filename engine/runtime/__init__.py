"""The CRI client and the embedded runtime. Touches gRPC, netlink and processes; imports `api`, `metrics`, `wire`."""
