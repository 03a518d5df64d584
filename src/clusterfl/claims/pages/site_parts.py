"""Parts of the page over all studies: words, counts, texts of methods, and data packed for its script."""

from __future__ import annotations

import ast
import base64
import gzip
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...errors import UserError
from ...methods import METHODS
from ...pipeline.job import Job
from ...registry import parsed, source_file
from ...report import content
from ..runs import Run

Content = dict[str, Any]
MEANINGS = {
    "reproduced": "neither the difference nor twice the joint standard error exceeds what is allowed, the tolerance or "
    "the printed rounding; or both sides are empty for the same reason",
    "by construction": "ours agrees with print, but couldn't have come out differently; the reason says why",
    "undecided": "the difference is within twice the joint standard error, and that exceeds what is allowed; or no "
    "standard deviation is known",
    "differs": "at the paper's settings, ours is further from print than both tolerance and noise allow, or one side "
    "alone is empty; the reason says which way and by how much",
    "not comparable": "we have a number, but it can't be compared with print: its settings aren't the paper's, or the "
    "printed number means something else; the reason says which",
    "not run": "no study here has a number to compare; the reason says what is missing",
}
MEANINGS_OF_ORDERINGS = {
    "holds": "in every combination of dataset, setting and iteration for which the paper has numbers, by more than two "
    "joint standard errors",
    "holds for those run": "the same in all that was run; the reason says how many combinations or which methods are "
    "missing",
    "holds in part": "in the given number and share of the combinations; the others fail or are undecided",
    "fails": "in all combinations, or in some while the others are undecided",
    "undecided": "in every one the means are within two joint standard errors, or no standard deviation is known",
    "by construction": "it holds, but couldn't have come out differently; the reason says why",
    "no number": "everything was run, but the measure has no value there",
    "not run": "no study at this scale has the numbers",
}


def counts(verdicts: pd.Series, kinds: Sequence[str]) -> list[Content]:
    """Return how often each verdict occurs, and its share in per cent."""
    found = verdicts.value_counts()
    return [
        {
            "verdict": kind,
            "count": int(found.get(kind, 0)),
            "share": 100 * int(found.get(kind, 0)) / max(1, len(verdicts)),
        }
        for kind in kinds
    ]


def about(kind: str) -> Content:
    """Return a method's docstrings, its module's included, and its options; nothing is imported."""
    found: Content = {"kind": kind, "texts": [], "options": None}
    try:
        module, _, attribute = METHODS.spec(kind).partition(":")
        fields = METHODS.options(kind).model_fields
    except UserError:  # a method of the user's own that is no longer there
        return found
    path = source_file(module)
    tree = parsed(path) if path is not None else ast.Module([], [])
    own = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == attribute]
    texts = [text for node in (*own, tree) if (text := ast.get_docstring(node))]
    found["texts"] = [part.replace("``", "") for text in texts for part in paragraphs(text)]
    rows = [(name, "–" if f.is_required() else repr(f.default), f.description or "") for name, f in fields.items()]
    found["options"] = content.listing(pd.DataFrame(rows, columns=["option", "default", "meaning"])) if rows else None
    return found


def paragraphs(text: str) -> list[str]:
    """Return a docstring's paragraphs, each on one line unless its lines are indented or underlined."""
    blocks = re.split(r"\n\s*\n", text)
    return [block if re.search(r"\n(\s|--)", block) else block.replace("\n", " ") for block in blocks]


def packed(value: Any) -> str:
    """Return a value as base64 of gzipped JSON, which has no character special to HTML. NaN becomes null."""
    text = json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def thinned(lines: Mapping[str, Content], points: int) -> Content:
    """Return curves with at most `points` points each."""
    found: Content = {}
    for key, methods in lines.items():
        found[key] = {}
        for method, measures in methods.items():
            found[key][method] = {}
            for measure, columns in measures.items():
                kept = np.unique(np.linspace(0, len(columns[0]) - 1, points).round().astype(int))
                found[key][method][measure] = [[column[i] for i in kept] for column in columns]
    return found


def finite(value: Any) -> Any:
    """Return a value with null for each number that isn't finite, NumPy's scalars as Python's, and keys as strings."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def chain(job: Job, seen: set[int] | None = None) -> Iterator[Job]:
    """Yield the jobs that a job needs, each once, and itself last."""
    seen = set() if seen is None else seen
    for other in job.upstream.values():
        if id(other) not in seen:
            yield from chain(other, seen)
    if id(job) not in seen:
        seen.add(id(job))
        yield job


def summary(runs: Sequence[tuple[str, Run]]) -> tuple[pd.DataFrame, Mapping[str, content.Format]]:
    """Return the final scores and the costs of a federation's runs by method, as the page shows them, and formats.

    They are means over seeds, with sample standard deviations.
    """
    rows = pd.DataFrame([_numbers(method, run) for method, run in runs])
    groups = rows.groupby("method", sort=False)
    means, deviations = groups.mean(), groups.std()
    table = pd.DataFrame({"method": means.index, "seeds": groups.size().to_numpy()})
    for name, title, factor, digits in (
        ("accuracy", "accuracy %", 100, 2),
        ("loss", "loss", 1, 3),
        ("ari", "ARI", 1, 2),
    ):
        if means[name].notna().any():
            values = zip(factor * means[name], factor * deviations[name], strict=True)
            table[title] = [spread(mean, std, digits) for mean, std in values]
    table["clusters"] = means["clusters"].to_numpy()
    table["MB"] = (means["bytes_down"] + means["bytes_up"]).to_numpy()
    table["local steps"] = means["local_steps"].to_numpy()
    return table, {"clusters": content.ONE_DIGIT, "MB": content.MEGABYTES, "local steps": content.COUNT}


def _numbers(method: str, run: Run) -> dict[str, Any]:
    last = run.scores.iloc[-1] if len(run.scores) else {}
    scores = {name: last.get(name, math.nan) for name in ("accuracy", "loss")}
    return {"method": method, **scores, **{name: run.measured[0][name] for name in ("ari", "clusters")}, **run.spent}


def spread(mean: float, std: float, digits: int | None = None, sign: str = "") -> str:
    """Return mean ± standard deviation, a dash where there is no mean."""
    if math.isnan(mean):
        return "–"
    forms = ("{:.5g}", "{:.2g}") if digits is None else (f"{{:{sign}.{digits}f}}", f"{{:.{digits}f}}")
    text = forms[0].format(mean).replace("-", "−")
    return text if math.isnan(std) else f"{text} ± {forms[1].format(std)}"
