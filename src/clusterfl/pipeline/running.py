"""Who runs a study in a folder: one Snakemake, or any number of `clusterfl run`, which share the work job by job.

Snakemake deletes what a job is to write before it begins, and plans once; so nobody else may do the same study then.
Its own lock isn't used: a run that was killed leaves it behind, it keeps two studies apart that only share their data,
and the first of them that ends removes that of the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..storage.locks import claimed

NAME = ".running"


@contextlib.contextmanager
def running(study: Path, datasets: Iterable[Path], doing: str, shared: bool = False) -> Iterator[None]:
    """Claim a study's folder, and those of the datasets that the run is going to fetch.

    Parameters
    ----------
    study, datasets
        The folders.
    doing
        The command, for the sentence that others get.
    shared
        Whether others that share, too, may run the same.

    Raises
    ------
    UserError
        If somebody has one of them; it says who, since when and what to do.
    """
    wait = "wait until that ends, or end it as with Ctrl-C (kill -INT {process} on {host}); what it finished is kept"
    with contextlib.ExitStack() as claims:
        claims.enter_context(
            claimed(
                study / NAME,
                doing,
                f"study '{study.name}' is being run in this folder by {{holder}}; {wait}, and the same command goes "
                "on. Other studies may run here at the same time",
                shared,
            )
        )
        for folder in sorted(set(datasets)):
            claims.enter_context(
                claimed(
                    folder / NAME,
                    doing,
                    f"{folder} is being fetched for another study by {{holder}}; start again when "
                    "its download is done: both studies run at the same time then",
                    shared,
                )
            )
        yield
