"""The files of each stage; a table that imports nothing, so that the command line's help needn't wait."""

from __future__ import annotations

METHOD_FILES = {
    "history": "{run}/methods/{name}/history.parquet",
    "classes": "{run}/methods/{name}/classes.parquet",
    "rounds": "{run}/methods/{name}/rounds.parquet",
    "clusters": "{run}/methods/{name}/clusters.parquet",
    "models": "{run}/methods/{name}/models.safetensors",
}

# stage -> (the name of its blocks on the command line, files it writes)
STAGES: dict[str, tuple[str | None, dict[str, str]]] = {
    "download": ("dataset", {}),
    "partition": (None, {"partition": "{run}/partition.parquet", "classes": "{run}/partition.classes.parquet"}),
    "warmup": (
        "warmup",
        {
            "clients": "{run}/warmup/{name}/clients",
            "common": "{run}/warmup/{name}/common.safetensors",
            "history": "{run}/warmup/{name}/history.parquet",
            "rounds": "{run}/warmup/{name}/rounds.parquet",
        },
    ),
    "losses": ("distance", {"losses": "{run}/losses/{name}/{part}/losses.parquet"}),
    "distance": ("distance", {"distance": "{run}/distance/{name}.parquet"}),
    "cluster": (
        "clustering",
        {"clusters": "{run}/clusters/{name}.parquet", "scores": "{run}/clusters/{name}.scores.parquet"},
    ),
    "federate": ("method", METHOD_FILES),  # a trial of a swept method: in the folder {name}/trials/{part}
    "select": ("method", METHOD_FILES | {"sweep": "{run}/methods/{name}/sweep.parquet"}),
    "report": (None, {"page": "{results}/{study}/report.html", "summary": "{results}/{study}/summary.parquet",
                      "study": "{results}/{study}/study.json", "tables": "{results}/{study}/tables",
                      "figures": "{results}/{study}/figures"}),
}  # fmt: skip
PARTS = {"federate": "trial", "losses": "shard"}  # what a job may be one of, numbered from 1
