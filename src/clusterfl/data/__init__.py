"""Datasets, partitions and transforms, each in one table."""

from ..registry import Registry

DATASETS = Registry(
    "dataset",
    {
        "digits": "clusterfl.data.digits:digits",
        "mnist": "clusterfl.data.vision:mnist",
        "fashionmnist": "clusterfl.data.vision:fashionmnist",
        "emnist-letters": "clusterfl.data.vision:emnist_letters",
        "emnist-digits": "clusterfl.data.vision:emnist_digits",
        "emnist-balanced": "clusterfl.data.vision:emnist_balanced",
        "emnist-byclass": "clusterfl.data.vision:emnist_byclass",
        "cifar10": "clusterfl.data.cifar:cifar10",
        "cifar100": "clusterfl.data.cifar:cifar100",
        "femnist": "clusterfl.data.leaf:femnist",
        "nist-letters": "clusterfl.data.leaf:nist_letters",
        "nist-letters-emnist": "clusterfl.data.vision:nist_letters_emnist",
        "shakespeare": "clusterfl.data.leaf:shakespeare",
        "shakespeare-tiny": "clusterfl.data.text:shakespeare_tiny",
        "agnews": "clusterfl.data.text:agnews",
        "agnews-test": "clusterfl.data.text:agnews_test",
        "amazon": "clusterfl.data.reviews:amazon",
        "amazon-labelled": "clusterfl.data.reviews:amazon_labelled",
        "landmarks": "clusterfl.data.index:landmarks",
        "inaturalist": "clusterfl.data.index:inaturalist",
        "linear": "clusterfl.data.linear:linear",
        "linear-ifca": "clusterfl.data.linear:linear_ifca",
        "linear-1d": "clusterfl.data.linear:linear_1d",
        "table": "clusterfl.data.own:table",
        "images": "clusterfl.data.own:images",
        "arrays": "clusterfl.data.own:arrays",
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
        "dominant-class": "clusterfl.data.partitions.clove:dominant_class",
        "feature-skew": "clusterfl.data.partitions.clove:feature_skew",
        "concept-shift": "clusterfl.data.partitions.clove:concept_shift",
        "consecutive-classes": "clusterfl.data.partitions.nist:consecutive_classes",
    },
)
