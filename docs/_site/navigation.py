"""Which page stands where in the side bar.

Pages are in toctrees that are added here while they are read, so that on a code host they show their text alone. A page
in none of them is a warning, which stops `make docs`.
"""

from __future__ import annotations

from sphinx.application import Sphinx

# Below which page, under which heading, in which order; `*` is every page that no earlier row names.
BELOW: dict[str, dict[str, list[str]]] = {
    "README": {
        "Begin": [
            "docs/notebooks/compare",
            "docs/notebooks/write-a-method",
            "docs/running",
            "docs/from-python",
            "docs/first-table",
            "docs/own-data",
            "docs/extending",
            "docs/sweeps",
            "docs/assign",
            "docs/compare",
            "docs/crate",
        ],
        "What there is": [
            "docs/methods/README",
            "docs/federations",
            "docs/evaluation",
            "docs/privacy",
            "docs/three-federations",
            "docs/bad-clients",
            "docs/drift",
        ],
        "The papers": ["docs/claims", "docs/reproduction/README", "docs/campaign"],
        "Running it": ["docs/performance", "docs/cluster", "docs/reliability", "docs/reproducibility", "docs/trust"],
        "Reference": ["docs/api/index", "docs/glossary"],
        "The project": ["CONTRIBUTING", "docs/architecture", "docs/layout", "docs/log", "CHANGELOG", "CODE_OF_CONDUCT"],
    },
    "docs/methods/README": {"": ["docs/methods/*"]},
    "docs/federations": {"": ["config/README"]},
    "docs/claims": {"": ["src/clusterfl/claims/data/README"]},
    "docs/reproduction/README": {
        "": [f"docs/reproduction/{name}" for name in ("clove", "text-and-code", "hours", "changes", "evidence/README")]
    },
    "docs/api/index": {"": ["docs/api/*"]},
}


def add(app: Sphinx, page: str, source: list[str]) -> None:
    """Append a page's toctrees to its text."""
    indented = page.endswith("index")
    for caption, entries in BELOW.get(page, {}).items():
        options = ["hidden", "glob", "titlesonly", *([f"caption: {caption}"] if caption else [])]
        lines = [
            *(f":{option}" if ":" in option else f":{option}:" for option in options),
            "",
            *("/" + e for e in entries),
        ]
        if indented:
            source[0] += "\n\n.. toctree::\n" + "".join(f"   {line}\n" for line in lines)
        else:
            source[0] += "\n\n```{toctree}\n" + "\n".join(lines) + "\n```\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """See Sphinx."""
    app.connect("source-read", add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
