import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.int64]

def sums_on_nodes(template: NDArray[np.int32], offsets: Values, amounts: Values) -> Values: ...
def scores_by_amounts(
    total: Values,
    free: Values,
    allocatable: Values,
    used: Values,
    request: Values,
    assumed: Values,
    nodes: Values | None,
) -> Values: ...
