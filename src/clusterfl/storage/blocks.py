"""What fits in memory: blocks of many rows, and pairs of not too many clients."""

from __future__ import annotations

from ..errors import UserError

BLOCK_BYTES = 64 << 20
MOST = 20_000  # clients compared all with all: their matrix has 3.2 GB


def blocks(rows: int, row_bytes: int, most: int | None = None) -> list[slice]:
    """Return slices that cover `rows` rows in order.

    Each has at most `most` bytes (`BLOCK_BYTES` if not given), or is one row that is longer.
    """
    step = max(1, (most or BLOCK_BYTES) // max(1, row_bytes))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


def too_many(clients: int | None, instead: str) -> str | None:
    """Return what is wrong with comparing so many clients all with all, or None; `instead` says what to do."""
    if clients is None or clients <= MOST:
        return None
    return (
        f"{clients} clients are too many to compare all with all, in a matrix of {8e-9 * clients**2:.0f} GB; "
        f"allowed: up to {MOST}; {instead}"
    )


def check_pairs(clients: int, instead: str) -> None:
    """Raise a `UserError` if these are too many to compare all with all; `instead` says what to do."""
    problem = too_many(clients, instead)
    if problem:
        raise UserError(problem)
