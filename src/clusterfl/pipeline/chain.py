"""The chain: each stage of the pipeline, declared once; what it does is in `stages`, in a file of its name.

The command line, the plan of jobs, the manifests and `clusterfl verify` read these values; the workflow's rules state
the same files, and a test compares the two. Nothing heavy is imported, so that ``clusterfl --help`` needn't wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial


@dataclass(frozen=True)
class Column:
    """A column of a table: its Arrow type, and the range of its values; a number that isn't there (NaN) is in it."""

    type: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Output:
    """A file, or a folder, that a stage writes.

    ``sometimes`` are columns that only some settings bring; ``keys`` those by which a sentence names a row.
    """

    path: str
    columns: Mapping[str, Column] = field(default_factory=dict)
    sometimes: Mapping[str, Column] = field(default_factory=dict)
    keys: tuple[str, ...] = ("client",)


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline: a function from input files and settings to output files."""

    name: str
    help: str  # for the command line
    outputs: Mapping[str, Output]  # the first one tells a job from all others
    block: str | None = None  # what its blocks are called on the command line and in a rule's wildcards
    part: str | None = None  # what a job may be one of, numbered from 1
    trains: bool = False  # trains or scores models
    inexact: bool = False  # the last bits of its results depend on the processor


INT, REAL, TEXT, TRUTH = (partial(Column, name) for name in ("int64", "double", "string", "bool"))
NUMBERS = partial(Column, "list of double")
RUN = "{results}/{study}/{federation}/seed{seed}"

HISTORY = Output(
    "history.parquet",
    {
        "round": INT(0), "client": INT(), "cluster": INT(0), "split": TEXT(), "evaluation": TEXT(), "n": INT(0),
        "correct": REAL(0), "loss": REAL(0),
    },
    keys=("round", "client", "split", "evaluation"),
)  # fmt: skip
ROUNDS = Output(
    "rounds.parquet",
    {
        "round": INT(1), "bytes_down": INT(0), "bytes_up": INT(0), "local_steps": INT(0), "client_forwards": INT(0),
        "clusters": INT(0), "excluded": INT(0), "epsilon": REAL(0),
    },
    {"dropped": INT(0), "straggled": INT(0)},
    keys=("round",),
)  # fmt: skip


def _in(folder: str, **outputs: Output) -> dict[str, Output]:
    """Return outputs that lie in a folder."""
    return {name: replace(output, path=f"{folder}/{output.path}") for name, output in outputs.items()}


METHOD = _in(
    RUN + "/methods/{name}",
    history=HISTORY,
    classes=Output(
        "classes.parquet", {"client": INT(), "class": INT(0), "n": INT(1), "correct": INT(0)}, keys=("client", "class")
    ),
    rounds=ROUNDS,
    clusters=Output(
        "clusters.parquet",
        {"round": INT(1), "client": INT(), "cluster": INT(-1), "participated": TRUTH()},
        keys=("round", "client"),
    ),
    models=Output("models.safetensors"),
)
DOWNLOAD = Stage(
    "download",
    "fetch a dataset and check it",
    {"samples": Output("{data}/{name}/samples.safetensors")},
    block="dataset",
)
PARTITION = Stage(
    "partition",
    "give samples to clients",
    _in(
        RUN,
        partition=Output(
            "partition.parquet",
            {"sample": INT(), "client": INT(), "split": TEXT(), "role": TEXT(), "transform": TEXT(),
             "true_cluster": INT()},
            keys=("client", "sample"),
        ),
        classes=Output(
            "partition.classes.parquet",
            {"client": INT(), "role": TEXT(), "true_cluster": INT(), "split": TEXT(), "class": INT(), "n": INT()},
        ),
    ),
)  # fmt: skip
WARMUP = Stage(
    "warmup",
    "train some rounds of FedAvg and keep every client's model",
    _in(
        RUN + "/warmup/{name}",
        clients=Output("clients"),
        common=Output("common.safetensors"),
        history=HISTORY,
        rounds=ROUNDS,
    ),
    block="warmup",
    trains=True,
    inexact=True,
)
LOSSES = Stage(
    "losses",
    "measure one shard of the losses that a distance needs",
    _in(RUN, losses=Output("losses/{name}/{part}/losses.parquet", {"client": INT(), "losses": NUMBERS()})),
    block="distance",
    part="shard",
    trains=True,
    inexact=True,
)
DISTANCE = Stage(
    "distance",
    "measure the distances between clients",
    _in(
        RUN,
        distance=Output(
            "distance/{name}.parquet", {"client": INT(), "distance": NUMBERS()}, sometimes={"landmark": TRUTH()}
        ),
    ),
    block="distance",
    trains=True,
    inexact=True,
)
CLUSTER = Stage(
    "cluster",
    "cluster the clients",
    _in(
        RUN,
        clusters=Output("clusters/{name}.parquet", {"client": INT(), "cluster": INT(-1)}),
        scores=Output(
            "clusters/{name}.scores.parquet",
            {"k": INT(), "silhouette": REAL(-1, 1), "eigengap": REAL(), "chosen": TRUTH()},
            keys=("k",),
        ),
    ),
    block="clustering",
    inexact=True,
)
FEDERATE = Stage("federate", "train one method", METHOD, block="method", part="trial", trains=True, inexact=True)
SELECT = Stage(
    "select",
    "choose the best trial of a swept method by validation score",
    METHOD
    | _in(
        RUN + "/methods/{name}",
        sweep=Output(
            "sweep.parquet",
            {"trial": INT(1), "values": TEXT(), "accuracy_mean": REAL(0, 1), "accuracy_std": REAL(0),
             "loss_mean": REAL(), "loss_std": REAL(0), "score_split": TEXT(), "seeds": INT(0),
             "bytes_down": REAL(0), "bytes_up": REAL(0), "chosen": TRUTH()},
            keys=("trial",),
        ),
    ),
    block="method",
)  # fmt: skip
REPORT = Stage(
    "report",
    "gather results into tables, figures and a page",
    _in(
        "{results}/{study}",
        page=Output("report.html"),
        summary=Output("summary.parquet"),
        study=Output("study.json"),
        tables=Output("tables"),
        figures=Output("figures"),
    ),
)
STAGES = {one.name: one for one in (DOWNLOAD, PARTITION, WARMUP, LOSSES, DISTANCE, CLUSTER, FEDERATE, SELECT, REPORT)}
