"""Datasets, partitions and transforms, each in one table."""

from ..registry import Registry

MIRROR = "CLUSTERFL_MIRROR"  # the environment variable that names a mirror

DATASETS = Registry(
    "dataset",
    {
        "digits": "clusterfl.data.readers.digits:digits",
        "mnist": "clusterfl.data.readers.vision:mnist",
        "fashionmnist": "clusterfl.data.readers.vision:fashionmnist",
        "emnist-letters": "clusterfl.data.readers.vision:emnist_letters",
        "emnist-digits": "clusterfl.data.readers.vision:emnist_digits",
        "emnist-balanced": "clusterfl.data.readers.vision:emnist_balanced",
        "emnist-byclass": "clusterfl.data.readers.vision:emnist_byclass",
        "cifar10": "clusterfl.data.readers.cifar:cifar10",
        "cifar100": "clusterfl.data.readers.cifar:cifar100",
        "femnist": "clusterfl.data.readers.leaf:femnist",
        "nist-letters": "clusterfl.data.readers.leaf:nist_letters",
        "nist-letters-emnist": "clusterfl.data.readers.vision:nist_letters_emnist",
        "shakespeare": "clusterfl.data.readers.leaf:shakespeare",
        "shakespeare-tiny": "clusterfl.data.readers.text:shakespeare_tiny",
        "agnews": "clusterfl.data.readers.text:agnews",
        "agnews-test": "clusterfl.data.readers.text:agnews_test",
        "amazon": "clusterfl.data.readers.reviews:amazon",
        "amazon-labelled": "clusterfl.data.readers.reviews:amazon_labelled",
        "landmarks": "clusterfl.data.readers.index:landmarks",
        "inaturalist": "clusterfl.data.readers.index:inaturalist",
        "linear": "clusterfl.data.readers.linear:linear",
        "linear-ifca": "clusterfl.data.readers.linear:linear_ifca",
        "linear-1d": "clusterfl.data.readers.linear:linear_1d",
        "table": "clusterfl.data.readers.own:table",
        "images": "clusterfl.data.readers.own:images",
        "arrays": "clusterfl.data.readers.own:arrays",
    },
)
PARTITIONS = Registry(
    "partition",
    {
        "iid": "clusterfl.data.partitions.general:iid",
        "dirichlet": "clusterfl.data.partitions.general:dirichlet",
        "shards": "clusterfl.data.partitions.general:shards",
        "quantity": "clusterfl.data.partitions.general:quantity",
        "natural": "clusterfl.data.partitions.general:natural",
        "by-group": "clusterfl.data.partitions.general:by_group",
        "dirichlet-clients": "clusterfl.data.partitions.hsu:dirichlet_clients",
        "mixture": "clusterfl.data.partitions.hsu:mixture",
        "rotated": "clusterfl.data.partitions.rotated:rotated",
        "label-skew": "clusterfl.data.partitions.clove:label_skew",
        "label-skew-released": "clusterfl.data.partitions.clove_released:label_skew_released",
        "dominant-class": "clusterfl.data.partitions.clove:dominant_class",
        "feature-skew": "clusterfl.data.partitions.clove:feature_skew",
        "concept-shift": "clusterfl.data.partitions.clove:concept_shift",
        "consecutive-classes": "clusterfl.data.partitions.nist:consecutive_classes",
    },
)
