"""Partitions: which client holds which sample, under which transform.

A partition is a function ``(data: Labels, generator, *, options) -> Table`` that returns columns of equal length:
``sample`` (a row of the dataset) and ``client`` (0, 1, ...), and where it has them ``true_cluster``, ``transform``,
``split`` and ``role``. It deals training and test rows apart, stores row numbers and names and never data, and draws
from the generator it is given only. Where a paper and its released code differ, ``profile`` tells which is followed.
"""
