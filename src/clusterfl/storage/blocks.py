"""Limits of memory: blocks of rows, and the most clients that can be compared pairwise."""

from __future__ import annotations

from ..errors import UserError

BLOCK_BYTES = 64 << 20
MOST = 20_000  # the most clients compared pairwise: their matrix has 3.2 GB


def blocks(rows: int, row_bytes: int, most: int | None = None) -> list[slice]:
    """Return slices that cover `rows` rows in order.

    Each has at most `most` bytes (`BLOCK_BYTES` if not given), or is a single longer row.
    """
    step = max(1, (most or BLOCK_BYTES) // max(1, row_bytes))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


def too_many(clients: int | None, instead: str) -> str | None:
    """Return why this many clients can't be compared pairwise, or None; `instead` ends it with what to do."""
    if clients is None or clients <= MOST:
        return None
    return (
        f"{clients} clients are too many to compare all with all, in a matrix of {8e-9 * clients**2:.0f} GB; "
        f"allowed: up to {MOST}; {instead}"
    )


def check_pairs(clients: int, instead: str) -> None:
    """Raise a `UserError` if these are too many clients to compare pairwise; `instead` as for `too_many`."""
    problem = too_many(clients, instead)
    if problem:
        raise UserError(problem)
