"""Networks, in one table. A model is a function of ``(sample_shape, outputs)`` and its options.

It returns a torch module. `outputs` is the number of classes, 1 for regression, or the size of a sample if the sample
itself is the target (`clusterfl.data.prepared.outputs`). A module may have ``weight_decays``, a dictionary from names
of its parameters to L2 penalties for these alone, which are added to the penalty of the training settings. A module's
class may name a subclass without further parameters, `on_cpu`, which computes the same up to rounding, but faster on a
CPU.
"""

from ..registry import Registry

MODELS = Registry(
    "model",
    {
        "linear": "clusterfl.models.plain:linear",
        "mlp": "clusterfl.models.plain:mlp",
        "lcfl-cnn": "clusterfl.models.lcfl:cnn",
        "lcfl-cifar-cnn": "clusterfl.models.lcfl:cifar_cnn",
        "ifca-cifar-cnn": "clusterfl.models.ifca:cifar_cnn",
        "leaf-cnn": "clusterfl.models.ifca:leaf_cnn",
        "clove-cnn": "clusterfl.models.clove:cnn",
        "clove-cifar-cnn": "clusterfl.models.clove:cifar_cnn",
        "clove-autoencoder": "clusterfl.models.clove:autoencoder",
        "clove-cifar-autoencoder": "clusterfl.models.clove:cifar_autoencoder",
        "textcnn": "clusterfl.models.clove:textcnn",
        "fedgwc-cnn": "clusterfl.models.fedgwc:cnn",
        "lenet5": "clusterfl.models.fedgwc:lenet5",
        "mobilenet-v2": "clusterfl.models.fedgwc:mobilenet",
        "resnet": "clusterfl.models.fedgwc:resnet",
        "flexcfl-mlp": "clusterfl.models.flexcfl:mlp",
        "flexcfl-cnn": "clusterfl.models.flexcfl:cnn",
        "flexcfl-mnist-cnn": "clusterfl.models.flexcfl:mnist_cnn",
        "rr-cnn": "clusterfl.models.rr:cnn",
        "char-lstm": "clusterfl.models.rr:char_lstm",
    },
)
