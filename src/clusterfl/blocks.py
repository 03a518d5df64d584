"""Cutting many rows into blocks that fit in memory."""

from __future__ import annotations

BLOCK_BYTES = 64 << 20


def blocks(rows: int, row_bytes: int, most: int | None = None, least: int = 1) -> list[slice]:
    """Return slices that cover `rows` rows in order.

    Each has at most `most` bytes (`BLOCK_BYTES` if not given), but `least` rows however long they are.
    """
    step = max(least, (most or BLOCK_BYTES) // max(1, row_bytes))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]
