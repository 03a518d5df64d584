"""Amazon reviews of four product domains (Blitzer, Dredze and Pereira 2007) as bags of words."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from ...errors import UserError
from ..packed import DAMAGED, arrays, content
from ..samples import Samples
from .text import split_words, vocabulary

DOMAINS = ("books", "dvd", "electronics", "kitchen")
ARCHIVES = ("sorted_data_acl_labelled.tar.xz", "domain_sentiment_data.tar.gz")
MOST = 1 << 28  # bytes of a file: the largest has two million
AGAIN = "delete it, then download it again"


def amazon(
    folder: Path,
    *,
    words: Annotated[int, Field(gt=0, description="number of features kept, from the first on")] = 5000,
) -> Samples:
    """Return the reviews of amazon.npz: float32 ``[N, words]``, negative 0, positive 1; groups are the four domains.

    The format is that of KD3A (github.com/FengHZ/KD3A, datasets/AmazonReview.py): a sparse matrix of features by
    reviews in ``xx_data, xx_row, xx_col``, its ``xx_shape``, signs of the sentiment in ``yy``, and in ``offset`` the
    first review of each domain and the number of all reviews.
    """
    path = folder / "amazon.npz"
    try:
        file = arrays(path)
        data, feature, review = (file[key].reshape(-1) for key in ("xx_data", "xx_row", "xx_col"))
        count = int(file["xx_shape"].reshape(-1)[1])
        signs, offset = file["yy"].reshape(-1), file["offset"].reshape(-1).astype(np.int64)
    except (KeyError, IndexError, ValueError, TypeError, OSError) as error:
        raise UserError(f"{path} isn't KD3A's amazon.npz ({error}); {AGAIN}") from error
    if len(signs) != count or len(offset) != 5 or offset[0] != 0 or offset[4] != count or (np.diff(offset) < 0).any():
        raise UserError(
            f"{path}: {len(signs)} labels and domains from {offset.tolist()} don't fit {count} reviews; {AGAIN}"
        )
    numbers = all(part.dtype.kind in "iuf" for part in (data, feature, review, signs))
    inside = numbers and len({len(data), len(feature), len(review)}) == 1
    if not inside or not ((feature >= 0).all() and (review >= 0).all() and (review < count).all()):
        raise UserError(f"{path}: the features' rows and columns don't fit {count} reviews; {AGAIN}")
    x = np.zeros((count, words), dtype=np.float32)
    feature, review = feature.astype(np.int64), review.astype(np.int64)
    kept = feature < words
    np.add.at(x, (review[kept], feature[kept]), data[kept].astype(np.float32))
    return Samples(x, (signs > 0).astype(np.int64), group=np.repeat(np.arange(4), np.diff(offset)))


def amazon_labelled(
    folder: Path,
    *,
    words: Annotated[int, Field(gt=0, description="number of words, the most frequent ones, that are counted")] = 5000,
) -> Samples:
    """Return the labelled reviews: float32 ``[8000, words]`` of counts, negative 0, positive 1, the domain as group.

    In each domain, in the order books, dvd, electronics, kitchen & housewares, the negative reviews come first. A
    review is its title and text. The vocabulary is that of all reviews: most frequent words first, equally frequent
    ones in alphabetical order.
    """
    path = next((folder / name for name in ARCHIVES if (folder / name).exists()), folder / ARCHIVES[0])
    files = _labelled(path)
    texts = [text for part in files for text in part]
    ranks = vocabulary(texts, words)
    x = np.zeros((len(texts), words), dtype=np.float32)
    for row, text in zip(x, texts, strict=True):
        np.add.at(row, [ranks[word] for word in text if word in ranks], 1)
    sizes = [len(part) for part in files]
    return Samples(x, np.repeat(np.arange(8) % 2, sizes), group=np.repeat(np.arange(8) // 2, sizes))


def _labelled(path: Path) -> list[list[list[str]]]:
    """Return the words of the reviews in the eight labelled files: negative, then positive, of each domain."""
    found = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                *_, folder, name = ["", *Path(member.name).parts]
                stream = archive.extractfile(member) if member.isfile() else None
                if stream and name in ("negative.review", "positive.review"):
                    text = content(stream, MOST, f"{path}: {member.name}").decode("latin-1")
                    found[folder.partition("_")[0], name] = _reviews(text, f"{path}: {member.name}")
    except DAMAGED as error:
        raise UserError(f"{path} can't be read ({error}); {AGAIN}") from error
    wanted = [(domain, name) for domain in DOMAINS for name in ("negative.review", "positive.review")]
    missing = ["/".join(key) for key in wanted if key not in found]
    if missing:
        raise UserError(f"{path} has no {missing[0]}; {AGAIN}")
    return [found[key] for key in wanted]


def _reviews(text: str, source: str) -> list[list[str]]:
    """Return the words of each review of a file of tagged text, which isn't valid XML."""
    reviews = re.findall(r"<review>(.*?)</review>", text, re.DOTALL)
    words = []
    for number, review in enumerate(reviews, 1):
        bodies = re.findall(r"<review_text>(.*?)</review_text>", review, re.DOTALL)
        titles = re.findall(r"<title>(.*?)</title>", review, re.DOTALL)
        if len(bodies) != 1:
            raise UserError(f"{source}: review {number} has {len(bodies)} texts instead of one; {AGAIN}")
        words.append(split_words(" ".join([*titles[:1], *bodies])))
    return words
