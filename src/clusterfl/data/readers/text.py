"""Texts as numbers: news articles word by word, and plays character by character."""

from __future__ import annotations

import csv
import html
import io
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...errors import UserError
from ..samples import Samples

# The 80 characters in the order of LEAF (Caldas et al. 2018, models/utils/language_utils.py): a character's number is
# its position. Other characters count as a space; in tiny Shakespeare there is only one, a dollar sign.
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80  # characters that a network sees before the one it predicts
PADDING, UNKNOWN, FIRST = 0, 1, 2  # indices of words: no word, a rare one, the most frequent one

_NUMBERS = np.full(129, LETTERS.index(" "), dtype=np.int16)
_NUMBERS[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))


def numbered(text: str) -> NDArray[np.int16]:
    """Return the numbers of a text's characters: ``[len(text)]``, 0 to 79."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    return _NUMBERS[np.minimum(codes, 128)]


def shakespeare_tiny(
    folder: Path,
    *,
    stride: Annotated[int, Field(gt=0, description="characters from one window's start to the next one's")] = 5,
) -> Samples:
    """Return windows of 80 characters, int16 ``[N, 80]``, and the number of the character after each.

    A speaker's speeches are joined by line breaks in the order of the text; windows never cross from one speaker to
    another. Owners are the speakers with at least one window, numbered by name. LEAF shifts its windows by one
    character; the default of five gives a fifth of the samples, and each character is still seen 16 times.
    """
    path = folder / "tinyshakespeare.txt"
    speeches: dict[str, list[str]] = {}
    for block in re.split("\n\n+", path.read_text(encoding="utf-8").strip()):
        name, _, speech = block.partition("\n")
        if not name.endswith(":"):
            raise UserError(f"{path}: '{name[:40]}' isn't a speaker's name and a colon; download it again")
        speeches.setdefault(name[:-1], []).append(speech)
    texts = {name: "\n".join(parts) for name, parts in speeches.items()}
    windows = [
        np.lib.stride_tricks.sliding_window_view(numbered(texts[name]), WINDOW + 1)[::stride]
        for name in sorted(texts)
        if len(texts[name]) > WINDOW
    ]
    rows = np.concatenate(windows)
    owner = np.repeat(np.arange(len(windows)), [len(part) for part in windows])
    return Samples(np.ascontiguousarray(rows[:, :-1]), rows[:, -1].astype(np.int64), owner=owner)


def agnews(
    folder: Path,
    *,
    words: Annotated[int, Field(gt=0, lt=32766, description="words in the vocabulary")] = 20_000,
    length: Annotated[int, Field(gt=0, description="words kept of an article; shorter ones are padded")] = 200,
) -> Samples:
    """Return AG News: int16 ``[127600, length]``, 120,000 training articles then 7,600 for testing; topics 0 to 3.

    An article is its title and description. The vocabulary is that of the training part: 0 is padding, 1 any other
    word, 2 the most frequent word, and so on, equally frequent ones in alphabetical order.
    """
    train, test = (_articles(folder / f"{part}.csv") for part in ("train", "test"))
    texts, y = train[0] + test[0], np.concatenate([train[1], test[1]])
    x = _rows(texts, vocabulary(train[0], words), length)
    return Samples(x, y, np.arange(len(y)) >= len(train[1]))


def agnews_test(
    folder: Path,
    *,
    words: Annotated[int, Field(gt=0, lt=32766, description="words in the vocabulary")] = 20_000,
    length: Annotated[int, Field(gt=0, description="words kept of an article; shorter ones are padded")] = 200,
) -> Samples:
    """Return the test part of AG News alone, int16 ``[7600, length]``, in the form of `agnews`.

    The vocabulary is that of these articles.
    """
    texts, y = _articles(folder / "test.csv")
    return Samples(_rows(texts, vocabulary(texts, words), length), y)


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case: letters and digits, with what follows an apostrophe."""
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)*", html.unescape(text).lower())


def vocabulary(texts: Iterable[list[str]], size: int) -> dict[str, int]:
    """Return the most frequent words, each with its rank from 0; equally frequent ones in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: rank for rank, word in enumerate(ranked[:size])}


def _rows(texts: list[list[str]], ranks: dict[str, int], length: int) -> NDArray[np.int16]:
    x = np.full((len(texts), length), PADDING, dtype=np.int16)
    for row, text in zip(x, texts, strict=True):
        numbers = [FIRST + ranks[word] if word in ranks else UNKNOWN for word in text[:length]]
        row[: len(numbers)] = numbers
    return x


def _articles(path: Path) -> tuple[list[list[str]], NDArray[np.int64]]:
    """Return the words of each article of a file with the columns class (1 to 4), title, description."""
    texts: list[list[str]] = []
    topics: list[Any] = []
    try:
        rows = list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8"), newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} can't be read as CSV ({error}); download it again") from error
    for number, row in enumerate(rows, 1):
        if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
            raise UserError(f"{path}, article {number}: no class from 1 to 4, title and text; download it again")
        # Line breaks were published as backslashes, and character codes without their ampersand.
        text = re.sub(r"#\d+;", " ", re.sub(r" ?#39;", "'", " ".join(row[1:]).replace("\\", " ")))
        texts.append(split_words(text))
        topics.append(int(row[0]) - 1)
    return texts, np.array(topics, dtype=np.int64)
