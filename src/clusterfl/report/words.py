"""Results as sentences: the headline of the page and some lines for the terminal.

All are derived from the summary table, and the line on faulty clients from ``faults.csv``. Nothing here imports pandas,
matplotlib or torch.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.study import Study
from ..errors import UserError
from ..storage.store import RESULTS, read_table

# Methods that don't look for clusters: one model for all, one for each client, or planted groups.
FIXED = {
    *("fairavg", "fedavg", "fedavgm", "fedprox", "local", "oracle"),
    *("apfl", "ditto", "fedala", "fedpac", "fedper", "fedproto", "per-fedavg", "pfedme"),
}
INFORMED = "oracle"  # knows the planted groups
Row = Mapping[str, Any]


def summary(study: Study) -> str:
    """Return lines of text: page, main finding, agreement with the planted groups.

    After them, if there are any, methods scored on fewer clients than others, and faulty clients.

    Raises
    ------
    UserError
        If the study has no report yet.
    """
    folder, rows, settings = RESULTS / study.study, _rows(study), study.model_dump(mode="json")
    first = next(iter(study.federations))
    others = len(study.federations) - 1
    more = f" ({others} more federation{'s' * (others > 1)} on the page)" if others else ""
    lines = [f"{study.title or study.study}: {folder / 'report.html'}{more}", *_findings(study, rows, [first])[first]]
    parts = {
        name: fewer([row for row in rows if row["federation"] == name], settings["score"])
        for name in settings["federations"]
    }
    if scored := "; ".join(f"{name} {', '.join(shares)}" for name, shares in parts.items() if shares):
        lines.append(f"Scored on fewer clients than other methods (mean over seeds): {scored}.")
    return "\n".join(lines + _bad(folder / "tables" / "faults.csv"))


def as_json(study: Study) -> str:
    """Return the page, the findings by federation and the rows of the summary as a JSON object; NaN is null.

    Raises
    ------
    UserError
        If the study has no report yet.
    """
    rows = _rows(study)
    found = {
        "study": study.study,
        "page": str(RESULTS / study.study / "report.html"),
        "findings": _findings(study, rows, [*study.federations]),
        "rows": [{key: _plain(value) for key, value in row.items()} for row in rows],
    }
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rows(study: Study) -> list[dict[str, Any]]:
    """Return the rows of a study's summary."""
    path = RESULTS / study.study / "summary.parquet"
    if not path.exists():
        raise UserError(
            f"study '{study.study}' has no report yet ({path} is missing); "
            "make it with: snakemake, or clusterfl run, with the same configuration"
        )
    table = read_table(path)
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def _findings(study: Study, rows: Sequence[Row], federations: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the headlines of these federations, by name."""
    settings = study.model_dump(mode="json")
    return {name: headline([row for row in rows if row["federation"] == name], settings) for name in federations}


def _bad(path: Path) -> list[str]:
    """Return a line that counts faulty clients on each federation, or none."""
    if not path.exists():  # in an older report
        return []
    found: dict[str, Counter[str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            counts = found.setdefault(row["federation"], Counter())
            counts.update({kind: int(row[kind]) for kind in ("dropped", "straggled", "excluded")})
            for kind in ("corrupt", "flipped", "left_out"):
                counts[kind] = max(counts[kind], int(row[kind]))
    informed = {name: [f"{n} {kind.replace('_', ' ')}" for kind, n in c.items() if n] for name, c in found.items()}
    parts = [f"{name} {', '.join(words)}" for name, words in informed.items() if words]
    if not parts:
        return []
    return [f"Bad clients (all rounds, methods and seeds; corrupt, flipped, left out: of one run): {'; '.join(parts)}."]


def of_all(score: Mapping[str, Any]) -> bool:
    """Return whether a score is of all clients that have a model, not of a round's participants alone."""
    return score["evaluation"] not in ("local", "stale")


def fewer(rows: Sequence[Row], score: Mapping[str, Any]) -> list[str]:
    """Return which methods are scored on fewer clients than others, and on how many, e.g. ``ifca 3.5 of 10``."""
    if not of_all(score):
        return []
    nan = math.nan  # in a summary without these columns
    counts = [(row["method"], row.get("scored_clients", nan), row.get("scored_of", nan)) for row in rows]
    return [
        f"{method} {' of '.join(f'{number:.1f}'.removesuffix('.0') for number in numbers)}"
        for method, *numbers in counts
        if numbers[0] < numbers[1]
    ]


def headline(rows: Sequence[Row], settings: Mapping[str, Any]) -> tuple[str, str]:
    """Return a sentence on a federation's scores and one on its clusters, from its rows of the summary."""
    kinds = {name: block["method"] for name, block in settings["methods"].items()}
    name = "accuracy" if any(known(row["accuracy_mean"]) for row in rows) else "loss"
    scored = [row for row in rows if known(row[f"{name}_mean"])]
    where = rows[0]["federation"]
    if not scored:
        return f"{where}: no method has the score that is asked for.", _clusters(rows, kinds)
    scored.sort(key=lambda row: row[f"{name}_mean"], reverse=name == "accuracy")
    informed = [row for row in scored if kinds[row["method"]] == INFORMED]
    others = [row for row in scored if row not in informed] or scored
    words = _best(others, name, settings, bool(informed)) + _undecided(others, name, settings["baseline"])
    if informed and informed[0] not in others:
        words += f"; {informed[0]['method']}, which knows the planted groups, has {value(informed[0], name)}"
    if without := [row["method"] for row in rows if not known(row[f"{name}_mean"])]:
        words += f"; {', '.join(without)} {'have' if len(without) > 1 else 'has'} none"
    return f"{where}: {words}.", _clusters(rows, kinds)


def _best(rows: Sequence[Row], name: str, settings: Mapping[str, Any], informed: bool) -> str:
    """Return words for the best rows and their distance from the baseline; others may be `informed` of the groups."""
    without = "without knowledge of the groups " if informed else ""
    key = f"{name}_mean"
    best = [row for row in rows if row[key] == rows[0][key]]
    names = " and ".join(row["method"] for row in best)
    superlative = "highest" if name == "accuracy" else "lowest"
    words = f"{names} {'have' if len(best) > 1 else 'has'} the {superlative} {label(name, settings['score'])}"
    words += f", {value(best[0], name)} ({_seeds(best[0]['seeds'])})"
    base = next((row for row in rows if row["method"] == settings["baseline"]), None)
    if base is None:
        return words
    if base in best:
        return words + f"; no method {without}does better than the baseline" if len(rows) > 1 else words
    gap = abs(best[0][key] - base[key])
    amount = f"{100 * gap:.1f} points" if name == "accuracy" else f"{gap:.3g}"
    side = "above" if best[0][key] > base[key] else "below"
    return words + f", {amount} {side} the baseline {base['method']} ({_interval(best[0], name)})"


def _undecided(rows: Sequence[Row], name: str, baseline: str | None) -> str:
    """Return words for the methods that the best isn't distinguished from; of the baseline `_best` says it already."""
    key = f"{name}_mean"
    tied = [row for row in rows if row[key] == rows[0][key]]
    nan = math.nan  # in a report of before there were any, with one seed, or where one diverged
    ends = [(row["method"], row.get("to_best_low", nan), row.get("to_best_high", nan)) for row in rows]
    left = {row["method"] for row in tied} | {baseline}
    close = [method for method, low, high in ends if low <= 0 <= high and method not in left]
    if not close:
        return ""
    listed = close if len(close) < 5 else [*close[:3], f"{len(close) - 3} more"]
    names = " and ".join(filter(None, [", ".join(listed[:-1]), listed[-1]]))
    return f"; {'their' if len(tied) > 1 else 'its'} lead over {names} is undecided"


def _interval(row: Row, name: str) -> str:
    """Return text on the interval of the differences from the baseline, and whether it contains zero."""
    low, high = row.get("difference_low"), row.get("difference_high")  # missing in an older report
    if low is None or high is None or not (known(low) and known(high)):
        return "one seed: no interval" if row["seeds"] == 1 else "no interval known"
    ends = " to ".join(f"{100 * end:.1f}" if name == "accuracy" else f"{end:.3g}" for end in (low, high))
    return f"95 % interval of the paired differences {ends}" + (": undecided" if low <= 0 <= high else "")


def _clusters(rows: Sequence[Row], kinds: Mapping[str, str]) -> str:
    """Return a sentence on the agreement of found clusters with planted groups."""
    finders = [row for row in rows if kinds[row["method"]] not in FIXED]
    if not finders:
        return "No method of this study looks for clusters."
    found = sorted((row for row in finders if known(row["ari_mean"])), key=lambda row: -row["ari_mean"])
    if not found:
        return "No groups were planted, so found clusters have nothing to be compared with."
    listed = ", ".join(f"{row['method']} {value(row, 'ari')}" for row in found[:6])
    more = f", {len(found) - 6} more on the page" if len(found) > 6 else ""
    return f"Adjusted Rand index against the planted groups (1 = the same, 0 = chance): {listed}{more}."


def value(row: Row, name: str) -> str:
    """Return mean and standard deviation as text, accuracies in per cent."""
    mean, std = row[f"{name}_mean"], row[f"{name}_std"]
    if not known(mean):
        return "–"
    factor, form, unit = {"accuracy": (100, ".1f", " %"), "ari": (1, ".2f", "")}.get(name, (1, ".3f", ""))
    if name == "loss" and not 0.01 <= abs(mean) < 1e4:
        form = ".2e"
    return f"{factor * mean:{form}}" + (f" ± {factor * std:{form}}" if known(std) else "") + unit


def label(name: str, score: Mapping[str, Any]) -> str:
    """Return the score's name, e.g. ``test accuracy`` or ``best-round test loss of local models``."""
    when = {"final": "", "best": "best-round "}.get(score["at"], f"round-{score['at']} ")
    kind = score["evaluation"]
    models = {"aggregated": "", "newcomer": " of newcomers"}.get(kind, f" of {kind} models")
    return f"{when}{score['split']} {name}{models}"


def known(number: Any) -> bool:
    """Return whether a number is known: neither None nor NaN."""
    return number is not None and not math.isnan(number)


def aligned(lines: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Return rows of cells, the header first, as a text table; columns named in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = "  ".join(f"{{:{'>' if name in right else '<'}{w}}}" for name, w in zip(lines[0], widths, strict=True))
    return "\n".join(form.format(*line).rstrip() for line in lines)


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"mean ± standard deviation of {count} seeds"
