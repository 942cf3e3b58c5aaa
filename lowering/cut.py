# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Minimum cuts: the cheapest way to part two nodes of a graph."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

LARGEST = 1_000_000_000
"""What the finite capacities of a cut add up to at most; scipy's are 32 bits."""
NEVER = 2**31 - 1


def min_cut(
    rows: Sequence[int], columns: Sequence[int], capacities: Sequence[float], nodes: int
) -> np.ndarray:
    """Which nodes are on the side of node 0 in a smallest cut between it and node 1.

    Capacities are scaled to integers that add up to a billion at most, infinite ones excepted.
    """
    given = np.asarray(capacities, float)
    finite = np.isfinite(given)
    total = given[finite].sum()
    scaled = np.full(len(given), NEVER, np.int64)
    if total > 0:
        scaled[finite] = np.ceil(given[finite] * ((LARGEST - len(given)) / total)).astype(np.int64)
    shape = (nodes, nodes)
    graph = csr_array((scaled.astype(np.int32), (rows, columns)), shape=shape)
    flow = maximum_flow(graph, 0, 1).flow
    residual = graph - flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    side = np.zeros(nodes, bool)
    side[breadth_first_order(residual, 0, return_predecessors=False)] = True
    return side
