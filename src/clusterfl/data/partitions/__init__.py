"""Partitions: which client holds which sample, under which transform.

A partition is a function ``(data: Labels, generator, *, options) -> Table`` that returns columns of equal length:
``sample`` (a row of the dataset) and ``client`` (0, 1, ...), and optionally ``true_cluster``, ``transform``, ``split``
and ``role``. It deals training and test rows separately, stores row numbers and names but no data, and draws only from
the generator it is given. Where a paper and its released code differ, ``profile`` says which is followed.
"""
