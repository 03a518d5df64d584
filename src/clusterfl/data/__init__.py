"""Datasets, partitions and transforms, each in one table."""

from ..registry import Registry

DATASETS = Registry(
    "dataset",
    {
        "digits": "clusterfl.data.digits:digits",
        "mnist": "clusterfl.data.vision:mnist",
        "fashionmnist": "clusterfl.data.vision:fashionmnist",
    },
)
PARTITIONS = Registry(
    "partition",
    {
        "iid": "clusterfl.data.partitions:iid",
        "rotated": "clusterfl.data.partitions:rotated",
    },
)
