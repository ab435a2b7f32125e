"""Non-negative least squares, for a dozen of unknowns and without numpy, which the python3 of `bazel run` may lack."""

from __future__ import annotations

from collections.abc import Sequence

_RIDGE = 1e-12  # of columns of length 1: two that are alike share their cost, where the equations would have no answer
_TOLERANCE = 1e-10


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss and Jordan's elimination. `matrix` is positive definite, so that its pivots are above 0."""
    rows = [[*row, value] for row, value in zip(matrix, right)]
    for column, _ in enumerate(right):
        rows[column] = pivot = [value / rows[column][column] for value in rows[column]]
        rows = [row if row is pivot else [one - row[column] * other for one, other in zip(row, pivot)] for row in rows]
    return [row[-1] for row in rows]


def non_negative(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """The x >= 0 for which |matrix x - right| is smallest, by the active sets of Lawson and Hanson (1974, chapter 23).
    """
    width = len(matrix[0])
    # Costs differ by ten orders of magnitude. With columns of length 1 one tolerance serves all.
    lengths = [sum(row[i] ** 2 for row in matrix) ** 0.5 or 1.0 for i in range(width)]
    scaled = [[value / length for value, length in zip(row, lengths)] for row in matrix]
    gram = [[sum(row[i] * row[j] for row in scaled) + _RIDGE * (i == j) for j in range(width)] for i in range(width)]
    against = [sum(row[i] * value for row, value in zip(scaled, right)) for i in range(width)]
    x = [0.0] * width
    free: list[int] = []
    for _ in range(10 * width):
        gradient = [against[i] - sum(gram[i][j] * x[j] for j in free) for i in range(width)]
        wanting = [i for i in range(width) if i not in free and gradient[i] > _TOLERANCE]
        if not wanting:
            break
        free.append(max(wanting, key=lambda i: gradient[i]))
        while True:
            found = dict(zip(free, _solve([[gram[i][j] for j in free] for i in free], [against[i] for i in free])))
            if all(value > 0 for value in found.values()):
                x = [found.get(i, 0.0) for i in range(width)]
                break
            # Goes from x towards the answer until the first unknown reaches 0, which leaves the free ones.
            step = min(x[i] / (x[i] - value) for i, value in found.items() if value <= 0)
            x = [x[i] + step * (found[i] - x[i]) if i in found else 0.0 for i in range(width)]
            free = [i for i in free if x[i] > _TOLERANCE]
            x = [value if i in free else 0.0 for i, value in enumerate(x)]
    return [value / length for value, length in zip(x, lengths)]
