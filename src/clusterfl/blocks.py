"""Cutting many rows into blocks that fit in memory."""

from __future__ import annotations

BLOCK_BYTES = 64 << 20


def blocks(rows: int, row_bytes: int) -> list[slice]:
    """Return slices that cover `rows` rows in order, each of at most `BLOCK_BYTES`, or of one row that is longer."""
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]
