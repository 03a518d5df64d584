"""Networks, in one table. A model is a function of ``(sample_shape, outputs)`` and its options."""

from ..registry import Registry

MODELS = Registry(
    "model",
    {
        "linear": "clusterfl.models.networks:linear",
        "mlp": "clusterfl.models.networks:mlp",
        "lcfl-cnn": "clusterfl.models.networks:lcfl_cnn",
    },
)
