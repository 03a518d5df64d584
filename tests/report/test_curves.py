"""Curves that lie on one another: each of them can be seen, and the legend says so."""

from __future__ import annotations

import numpy as np
import pandas as pd

from clusterfl.report import canvas, figures

RISE = np.array([0.1, 0.4, 0.5])


def table(**methods):
    """Return curves of rounds 1 to 3 by method: two seeds, one a point above the other."""
    rows = [
        pd.DataFrame({"method": name, "seed": seed, "round": [1, 2, 3], "accuracy": values + 0.01 * seed})
        for name, values in methods.items()
        for seed in (0, 1)
    ]
    return pd.concat(rows)


def drawn(**methods):
    names = list(methods)
    figure = figures.curves(table(**methods), figures.styles(names, names), {}, "accuracy", "accuracy (%)")
    axes = figure.axes[0]
    return {line.get_label(): line for line in axes.lines}, axes.collections


def test_of_equal_lines_the_later_is_narrower_and_on_top():
    lines, bands = drawn(one=RISE, other=RISE - 0.09, two=RISE, three=RISE + 1e-9)
    assert list(lines) == ["one", "other", "two\non the line of one", "three\non the line of one"]
    own = [line for name, line in lines.items() if name != "other"]
    widths, heights = [line.get_linewidth() for line in own], [line.get_zorder() for line in own]
    assert widths == sorted(set(widths), reverse=True) and min(np.diff(widths) * -1) >= 1
    assert heights == sorted(set(heights)) and widths[-1] == lines["other"].get_linewidth() == figures.WIDTH
    assert len(bands) == 2  # of three equal ranges one


def test_lines_that_can_be_seen_stay_as_they_are():
    lines, bands = drawn(one=RISE, two=RISE + np.array([0, 0, 0.01]), three=RISE - 0.05)
    assert list(lines) == ["one", "two", "three"] and len(bands) == 3
    assert {line.get_linewidth() for line in lines.values()} == {figures.WIDTH}
    shorter = pd.Series(RISE[:2], index=[1, 2])
    assert not figures.coincide(pd.Series(RISE, index=[1, 2, 3]), shorter, {"a": shorter})


def test_equal_means_keep_both_ranges_where_these_differ():
    rows = table(one=RISE, two=RISE)
    wide = rows["method"] == "two"
    rows.loc[wide, "accuracy"] += np.where(rows.loc[wide, "seed"] == 1, 0.2, -0.2)
    figure = figures.curves(rows, figures.styles(["one", "two"], ["one", "two"]), {}, "accuracy", "accuracy (%)")
    assert len(figure.axes[0].collections) == 2
    assert figure.axes[0].lines[1].get_label() == "two\non the line of one"


def test_a_mean_without_a_seed_that_diverged_is_not_drawn():
    rows = table(one=RISE, two=RISE - 0.1).assign(**dict.fromkeys(figures.COSTS, 1.0))
    rows["bytes"] = rows["round"]
    rows.loc[(rows["method"] == "two") & (rows["seed"] == 1) & (rows["round"] == 3), "accuracy"] = np.nan
    style = figures.styles(["one", "two"], ["one", "two"])
    curves = figures.curves(rows, style, {}, "accuracy", "%").axes[0].lines
    cost = figures.cost(rows, style, "accuracy", "%").axes[0].lines
    for lines in (curves, cost):
        means = [100 * (RISE + 0.005), 100 * (RISE - 0.095)]
        means[1][2] = np.nan
        for line, mean in zip(lines, means, strict=False):
            np.testing.assert_allclose(line.get_ydata(), mean)
    wide = pd.DataFrame({0: [1.0, 2.0], 1: [3.0, np.nan]}, index=["one", "two"])
    (mean,) = (
        x for x in figures.spreads(wide, {"one": 1.0, "two": np.nan}, "x").axes[0].lines if x.get_label() == "mean"
    )
    np.testing.assert_array_equal(mean.get_xdata(), [2, np.nan])


def test_a_crowd_of_pale_lines_has_one_name_in_the_legend():
    names = [f"m{i}" for i in range(canvas.SHOWN + 3)]
    lines = {name: pd.Series(RISE) for name in names}
    looks = figures.apart(figures.styles(names, names), lines)
    assert [look["label"] for look in looks.values()].count(None) == 2
    assert {looks[name]["linewidth"] for name in names[canvas.SHOWN :]} == {figures.WIDTH}
    assert looks["m0"]["linewidth"] <= figures.WIDTH + figures.WIDEST


def test_what_is_equal_gives_equal_bytes(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        names = ["a", "b"]
        figure = figures.curves(table(a=RISE, b=RISE), figures.styles(names, names), {}, "accuracy", "%")
        canvas.remark(figure, "reduced settings")
        canvas.save(figure, tmp_path / folder, "curves")
    one, two = ((tmp_path / folder / "curves.svg").read_bytes() for folder in ("one", "two"))
    assert one == two and b"reduced settings" in one and b"on the line of a" in one
