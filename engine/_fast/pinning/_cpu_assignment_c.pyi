from collections.abc import Mapping

class Layout:
    cores: Mapping[int, int]
    caches: Mapping[int, int]
    sockets: Mapping[int, int]
    nodes: Mapping[int, int]
    cpus: int
    per_core: int
    per_cache: int
    per_socket: int
    def __init__(
        self,
        cores: Mapping[int, int],
        caches: Mapping[int, int],
        sockets: Mapping[int, int],
        nodes: Mapping[int, int],
    ) -> None: ...

def take_packed(
    layout: Layout, available: int, count: int, *, spread: bool = False, whole_caches: bool = False
) -> int: ...
def take_distributed(
    layout: Layout, available: int, count: int, group: int, *, spread: bool = False
) -> int: ...
