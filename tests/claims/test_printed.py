"""The papers' tables as they are printed, ours beside them: the figures of places that print several iterations."""

from __future__ import annotations

import pandas as pd

from clusterfl.claims.pages import printed


def test_reduced_runs_are_lines_of_their_own():
    """A prefix at the paper's scale ends where it ends: no line leads on to a reduced run's number."""
    ours = {"at": ["1", "11", "51", "200"], "ours": [11.0, 29, 23, 30], "scale": ["prefix", "prefix", "lite", "lite"]}
    rows = pd.DataFrame(ours).assign(
        where="Fig. 5", dataset="cifar10", setting="rotated", metric="accuracy", method="ifca",
        printed=[12.0, 30, 58, 66], printed_std=float("nan"), ours_std=float("nan"),
    )  # fmt: skip
    (figure,) = printed.curves(rows).values()
    lines = {bars.get_label(): bars.lines[0] for bars in figure.axes[0].containers}
    assert {name: line.get_xydata().tolist() for name, line in lines.items()} == {
        "ifca, printed": [[1, 12], [11, 30], [51, 58], [200, 66]],
        "ifca, ours": [[1, 11], [11, 29]],
        "ifca, ours, reduced": [[51, 23], [200, 30]],
    }
    assert lines["ifca, ours, reduced"].get_alpha() < 1 == lines["ifca, ours"].get_alpha()
