"""The page's part on privacy for a federation: guarantees, and scores by epsilon."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os.path import commonprefix
from typing import Any

import numpy as np
import pandas as pd

from . import figures
from .content import Content, listing, number
from .section import Section


def privacy(section: Section) -> Content | None:
    """Return the guarantee of each private method, and its epsilon by round."""
    facts, spent = {}, {}
    for name in section.settings["methods"]:
        guarantee = section.source.guarantee(section.federation, section.seed, name)
        if guarantee is not None:
            facts[name] = guarantee
            rounds = section.source.frame(
                section.federation, section.seed, f"methods/{name}.rounds", ["round", "epsilon"]
            )
            spent[name] = rounds[np.isfinite(rounds["epsilon"])].set_index("round")["epsilon"]
    if not facts:
        return None
    spent = {name: values for name, values in spent.items() if len(values)}
    # The guarantee comes first, so that it is visible in a narrow window.
    titles = {"promise": "guarantee", "epsilon": "epsilon", "epsilon_at_least": "true epsilon at least"}
    titles |= {"delta": "delta", "noise_multiplier": "noise, both"}
    titles |= {f"noise_multiplier_{part}": f"noise, {part}" for part in ("identifiers", "updates")}
    numbers = list(titles.values())[1:]
    titles |= {"accounting": "accounting", "counted_by": "counted by", "adjacency": "neighbouring federations"}
    titles |= {"sampler": "sampler"}
    table = pd.DataFrame.from_dict(facts, orient="index").assign(promise=[*map(_promise, facts.values())])
    table = table.reindex(columns=[*titles]).rename(columns=titles).rename_axis("method")
    shown = listing(table.reset_index(), dict.fromkeys(numbers, number("{:.4g}")))
    found: Content = {"table": shown, "promised": all(_promise(f) == "yes" for f in facts.values())}
    found["unproven"] = [*_unproven([*facts.values()])]
    found["several"] = sum(guarantee["noise_multiplier_updates"] is not None for guarantee in facts.values()) > 1
    unproven = [name for name, guarantee in facts.items() if _promise(guarantee) != "yes"]
    if spent:
        text = "Privacy loss epsilon of all rounds so far"
        found["figure"] = section.figure(figures.epsilons(spent, section.style, unproven), "epsilon", text)
    budgets = section.scored.assign(epsilon=section.scored["method"].map({n: v.iloc[-1] for n, v in spent.items()}))
    if budgets["epsilon"].nunique() > 1:
        budgets = budgets.assign(family=budgets["method"].map(_families(section, budgets["method"])))
        figure = figures.budgets(budgets, section.measure, section.axis, section.style, unproven)
        found["budgets"] = section.figure(figure, "budgets", f"{section.axis} by privacy loss")
    return found


def _families(section: Section, methods: Iterable[str]) -> dict[str, str]:
    """Return the family of each method: methods whose settings differ only in the privacy budget."""
    equal: dict[str, list[str]] = {}
    for name in methods:
        block = section.settings["methods"][name]
        noise = {k: v for k, v in (block.get("privacy") or {}).items() if k not in ("epsilon", "noise_multiplier")}
        equal.setdefault(json.dumps(block | {"privacy": noise}, sort_keys=True), []).append(name)
    prefix = {k: commonprefix(names) for k, names in equal.items()}  # noqa: RUF071 - of letters, not of folders
    named = {k: names[0] if len(names) == 1 else f"{prefix[k]}*" for k, names in equal.items()}
    return {name: named[key] for key, names in equal.items() for name in names}


def _unproven(privacy: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield sentences about what isn't proven or counted in any of these guarantees."""
    accountings = {guarantee["accounting"] for guarantee in privacy}
    if "theorem-4.2" in accountings:
        yield (
            "The epsilon of theorem-4.2 is as printed by the paper and isn't proven: in a round of fixed size a client "
            "displaces another, and for that case alone the true epsilon is at least what the column says."
        )
    if "none" in accountings:
        yield "Accounting none counts nothing."
    if any(guarantee.get("not_counted") for guarantee in privacy):
        yield "Choosing among trials by their scores looks at the data again, and no epsilon here counts it."


def _promise(privacy: Mapping[str, Any]) -> str:
    """Return as text whether the privacy facts in a manifest are a guarantee, or why they aren't."""
    if privacy["accounting"] == "none":
        return "no guarantee"
    if privacy["accounting"] == "theorem-4.2":
        return "no: as printed by the paper"
    if privacy.get("not_counted"):
        return f"no: {privacy['not_counted']} isn't counted"
    return "no noise" if privacy["epsilon"] is None else "yes"
