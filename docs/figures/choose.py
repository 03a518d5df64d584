"""Draw what to choose a method by, docs/figures/choose.svg: python docs/figures/choose.py.

All but the rows' order and what is known of the number of groups comes from what methods declare.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from clusterfl.methods import METHODS
from clusterfl.simulation.method import Method

FAMILIES = {
    "One model for all": (["fedavg", "fairavg", "fedavgm", "fedprox"], "#f3f3f3"),
    "A model, or layers, for each client": (
        ["local", "fedper", "per-fedavg", "fedala", "ditto", "pfedme", "apfl", "fedproto", "fedpac"],
        "#f7efe0",
    ),
    "Groups are known": (["oracle"], "#e3f3e6"),
    "Groups are found once, then kept": (["lcfl", "pacfl", "flexcfl", "k-fed", "fl-hc", "flux"], "#e8eef7"),
    "Groups are found as training goes on": (
        [
            "ifca",
            "clove",
            "fedcam",
            "fedem",
            "fedrc",
            "fedsoft",
            "fesem",
            "stocfl",
            "fpfc",
            "feddrift",
            "cfl",
            "fedgwc",
        ],
        "#fbe3e0",
    ),
}
# How many groups there are is given (K), found by a rule with thresholds, or either.
NUMBER = {
    "oracle": "known",
    "lcfl": "K, or chosen",
    "pacfl": "threshold, or K",
    "fl-hc": "threshold, or K",
    "flux": "found, or K",
    "stocfl": "threshold",
    "fpfc": "penalty",
    "feddrift": "thresholds",
    "cfl": "thresholds",
    "fedgwc": "thresholds",
    "clove": "K, or more",
}
HEAD = ["", "how many groups", "sums of\nupdates", "choice or\nlosses", "own update\nor model", "summary of\nits data",
        "model for a\nnewcomer", "noise can\nprotect it"]  # fmt: skip
LEFT, FIRST, WIDE, NARROW, ROW = 12, 130, 124, 84, 24


def number(name: str, kind: type[Method], family: str) -> str:
    """Return who says how many groups there are."""
    if name in NUMBER:
        return NUMBER[name]
    if "clusters" in METHODS.options(name).model_fields:
        return "K"
    return "–" if not family.startswith("Groups") else "?"


def seen(kind: type[Method]) -> list[bool]:
    """Return whether a server sees sums of updates, choices or losses, single updates or models, data's summaries."""
    single = {"updates", "last_gradient"} & kind.needs or kind.one_shot or "update" in kind.asks or "layer" in kind.asks
    data = "features" in kind.needs or "sample" in kind.asks or "label" in kind.asks
    losses = kind.reveals != "nothing" or "curves" in kind.needs
    return [kind.communicates and "updates" not in kind.needs, losses, bool(single), data]


def row(name: str, family: str) -> list[str | bool]:
    """Return a method's row: texts, and whether something is so."""
    kind = METHODS[name]
    made = kind(**({"clusters": 2} if "clusters" in METHODS.options(name).model_fields else {}))
    noise = made.unprotected() is None and kind.communicates and not covered(kind)
    return [name, number(name, kind, family), *seen(kind), made.places, noise]


def covered(kind: type[Method]) -> bool:
    """Return whether a method weighs or regroups by updates in its own way, which privacy refuses."""
    return any(getattr(kind, hook) is not getattr(Method, hook) for hook in ("regroup", "weights"))


def draw() -> str:
    """Return the picture as SVG."""
    listed = [name for names, _ in FAMILIES.values() for name in names]
    assert sorted(listed) == sorted(METHODS), f"in one family each: {sorted(set(METHODS) ^ set(listed))}"
    edges = [LEFT, LEFT + FIRST, LEFT + FIRST + WIDE]
    edges += [edges[-1] + NARROW * column for column in range(1, 7)]
    parts, y = [], 58
    over = (edges[2] + edges[6]) / 2
    parts.append(f'<text x="{over:g}" y="16" text-anchor="middle" fill="#333">the server sees of a client</text>')
    parts.append(f'<path d="M{edges[2] + 6:g} 22 H{edges[6] - 6:g}" stroke="#999"/>')
    for column, text in enumerate(HEAD):
        middle = (edges[column] + edges[column + 1]) / 2
        for line, word in enumerate(text.split("\n")):
            parts.append(f'<text x="{middle:g}" y="{36 + 14 * line}" text-anchor="middle" fill="#333">{word}</text>')
    for family, (names, colour) in FAMILIES.items():
        height = ROW * (len(names) + 1) + 2
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{edges[-1] - LEFT:g}" height="{height}" rx="4" fill="{colour}"/>'
        )
        parts.append(f'<text x="{LEFT + 8}" y="{y + 17}" font-style="italic">{escape(family)}</text>')
        for place, name in enumerate(names, 1):
            line = y + 17 + ROW * place
            for column, value in enumerate(row(name, family)):
                middle = (edges[column] + edges[column + 1]) / 2
                if column == 0:
                    parts.append(f'<text x="{LEFT + 20}" y="{line}" font-weight="bold">{escape(str(value))}</text>')
                elif isinstance(value, str):
                    parts.append(f'<text x="{middle:g}" y="{line}" text-anchor="middle">{escape(value)}</text>')
                elif value:
                    parts.append(f'<circle cx="{middle:g}" cy="{line - 5}" r="5" fill="#333"/>')
                else:
                    parts.append(f'<circle cx="{middle:g}" cy="{line - 5}" r="1.5" fill="#999"/>')
        y += height + 6
    title = "Methods by how groups are found, who says how many there are, what a server sees, and what can be added"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {edges[-1] + LEFT:g} {y}" font-size="12.5" '
        f'font-family="DejaVu Sans, Verdana, sans-serif" role="img"><title>{title}</title>'
        '<rect width="100%" height="100%" fill="white"/>' + "".join(parts) + "</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_name("choose.svg").write_text(draw(), encoding="utf-8")
