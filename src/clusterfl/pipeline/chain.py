"""The chain: the declaration of each stage of the pipeline; its code is in `stages`, in a file of its name.

The command line, the plan of jobs, the manifests and `clusterfl verify` read these declarations; the workflow's rules
name the same files, and a test compares the two. Imports are light, so that ``clusterfl --help`` is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial


@dataclass(frozen=True)
class Column:
    """A column of a table, or an array in a file of tensors: its type and allowed values.

    A missing number (NaN) is in every range. `most` is a number, or the column that has the upper bound; `among` names
    a set of allowed values, known from the job's settings or inputs (`verify.content.known`).
    """

    type: str  # Arrow's name, "list of double", or "rows": models, a row each
    least: float | None = None
    most: float | str | None = None
    among: str = ""
    whole: bool = False  # only whole numbers, although the type has fractions
    finite: bool = False  # neither NaN nor infinity


@dataclass(frozen=True)
class Output:
    """A file, or a folder of files of tensors, that a stage writes.

    ``sometimes`` are columns that exist only with some settings; ``others``: whether undeclared columns are allowed. No
    two rows have the same ``keys``; a ``complete`` table has a row for each combination of the keys' allowed values.
    Arrays without keys have one entry for each element of the set ``per``.
    """

    path: str
    columns: Mapping[str, Column] = field(default_factory=dict)
    sometimes: Mapping[str, Column] = field(default_factory=dict)
    keys: tuple[str, ...] = ("client",)
    complete: bool = False
    others: bool = False
    per: str = ""


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline: a function from input files and settings to output files."""

    name: str
    help: str  # for the command line
    outputs: Mapping[str, Output]  # the first one identifies a job
    block: str | None = None  # name of its settings blocks on the command line and in a rule's wildcards
    part: str | None = None  # if a job may be one of several: "trial" or "shard", numbered from 1
    trains: bool = False  # trains or scores models
    inexact: bool = False  # the last bits of its results depend on the branch (`engine.processor`)


INT, REAL, TEXT, TRUTH = (partial(Column, name) for name in ("int64", "double", "string", "bool"))
NUMBERS = partial(Column, "list of double", finite=True)
MEMBER, SPLIT, ROLE = INT(among="members"), TEXT(among="splits"), TEXT(among="roles")
RUN = "{results}/{study}/{federation}/seed{seed}"

HISTORY = Output(
    "history.parquet",
    {
        "round": INT(0, among="scored rounds"),
        "client": INT(among="clients"),
        "cluster": INT(0, among="models"),
        "split": SPLIT,
        "evaluation": TEXT(among="evaluations"),
        "n": INT(0),
        "correct": REAL(0, "n", whole=True),
        "loss": REAL(0),
    },
    keys=("round", "client", "split", "evaluation"),
)
COUNTS = ("bytes_down", "bytes_up", "local_steps", "client_forwards", "clusters", "excluded")
ROUNDS = Output(
    "rounds.parquet",
    {"round": INT(1, among="rounds"), **dict.fromkeys(COUNTS, INT(0)), "epsilon": REAL(0)},
    {"dropped": INT(0), "straggled": INT(0)},
    keys=("round",),
    complete=True,
)
STATE = {
    "theta": Column("rows", finite=True),
    "labels": INT(-1, among="labels"),
    "participations": INT(0),
    "last_label": INT(-1),
}


def _in(folder: str, **outputs: Output) -> dict[str, Output]:
    """Return the outputs with their paths in a folder."""
    return {name: replace(output, path=f"{folder}/{output.path}") for name, output in outputs.items()}


METHOD = _in(
    RUN + "/methods/{name}",
    history=HISTORY,
    classes=Output(
        "classes.parquet",
        {"client": MEMBER, "class": INT(0), "n": INT(1), "correct": INT(0, "n")},
        keys=("client", "class"),
    ),
    rounds=ROUNDS,
    clusters=Output(
        "clusters.parquet",
        {
            "round": INT(1, among="own rounds"),
            "client": MEMBER,
            "cluster": INT(-1, among="labels"),
            "participated": TRUTH(),
        },
        keys=("round", "client"),
        complete=True,
    ),
    models=Output("models.safetensors", STATE, keys=(), others=True, per="members"),
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
            {
                "sample": INT(among="samples"),
                "client": INT(),
                "split": SPLIT,
                "role": ROLE,
                "transform": TEXT(),
                "true_cluster": INT(),
            },
            keys=("client", "sample"),
        ),
        classes=Output(
            "partition.classes.parquet",
            {"client": INT(), "role": ROLE, "true_cluster": INT(), "split": SPLIT, "class": INT(), "n": INT()},
            {"label": TEXT()},
            keys=("client", "split", "class"),
        ),
    ),
)
WARMUP = Stage(
    "warmup",
    "train some rounds of FedAvg and keep every client's model",
    _in(
        RUN + "/warmup/{name}",
        clients=Output("clients", {"client": MEMBER, "theta": STATE["theta"]}, complete=True, others=True),
        common=Output("common.safetensors", STATE, keys=(), others=True, per="members"),
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
    _in(
        RUN,
        losses=Output("losses/{name}/{part}/losses.parquet", {"client": MEMBER, "losses": NUMBERS(0)}, complete=True),
    ),
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
            "distance/{name}.parquet",
            {"client": MEMBER, "distance": NUMBERS()},
            sometimes={"landmark": TRUTH()},
            complete=True,
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
        clusters=Output(
            "clusters/{name}.parquet", {"client": MEMBER, "cluster": INT(-1, among="labels")}, complete=True
        ),
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
            {
                "trial": INT(1, among="trials"),
                "values": TEXT(),
                "accuracy_mean": REAL(0, 1),
                "accuracy_std": REAL(0),
                "loss_mean": REAL(),
                "loss_std": REAL(0),
                "score_split": TEXT(),
                "seeds": INT(0),
                "bytes_down": REAL(0),
                "bytes_up": REAL(0),
                "chosen": TRUTH(),
            },
            keys=("trial",),
            complete=True,
        ),
    ),
    block="method",
)
REPORT = Stage(
    "report",
    "gather results into tables, figures and a page",
    _in(
        "{results}/{study}",
        page=Output("report.html"),
        summary=Output(
            "summary.parquet",
            {"federation": TEXT(), "method": TEXT(), "accuracy_mean": REAL(0, 1)},
            keys=("federation", "method"),
            others=True,
        ),
        study=Output("study.json"),
        tables=Output("tables"),
        figures=Output("figures"),
    ),
)
STAGES = {one.name: one for one in (DOWNLOAD, PARTITION, WARMUP, LOSSES, DISTANCE, CLUSTER, FEDERATE, SELECT, REPORT)}
