"""Methods: who trains from which model, and where the updates go. One small file each, one table."""

from ..registry import Registry

METHODS = Registry(
    "method",
    {
        "fedavg": "clusterfl.methods.fixed:fedavg",
        "local": "clusterfl.methods.fixed:local",
        "oracle": "clusterfl.methods.fixed:oracle",
        "ifca": "clusterfl.methods.ifca:ifca",
        "lcfl": "clusterfl.methods.lcfl:lcfl",
    },
)
