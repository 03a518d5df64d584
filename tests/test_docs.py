"""The pages about methods and evaluation: tables are the code's, YAML blocks load, links lead somewhere."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from federations import engine, images, norm_and_dropout, slow_but, uneven
from pydantic.fields import FieldInfo

from clusterfl.clustering.distances import METRICS
from clusterfl.config import loading
from clusterfl.config.study import Score
from clusterfl.data.federation import Federation
from clusterfl.engine.engine import Engine
from clusterfl.engine.training import Evaluation
from clusterfl.methods import METHODS
from clusterfl.pipeline.stages.distance import measure
from clusterfl.report import tables
from clusterfl.simulation import loop

DOCS = Path(__file__).parents[1] / "docs"
AROUND = ["rr-cluster"]  # what isn't a method but stands around one
PAGES = {name: (DOCS / f"methods/{name}.md").read_text(encoding="utf-8") for name in [*METHODS, *AROUND]}
INDEX = (DOCS / "methods/README.md").read_text(encoding="utf-8")
EVALUATION = (DOCS / "evaluation.md").read_text(encoding="utf-8")
SMALL: dict[str, Any] = {
    "study": "small",
    "federations": {"digits": {"dataset": "digits", "partition": {"scheme": "rotated", "clients": 40, "newcomers": 8,
                                                                  "validation": 0.2}}},
}  # fmt: skip
BLOCK = re.compile(r"<!-- (profile|score): ([\w.-]+) -->\n```yaml\n(.*?)```", re.DOTALL)
BLOCKS = {
    f"{page}: {name}": yaml.safe_load(text)
    for page, content in (PAGES | {"evaluation": EVALUATION}).items()
    for _, name, text in BLOCK.findall(content)
}


def table(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows below a table's heading row."""
    lines = text.split(heading + "\n")[1].splitlines()[1:]
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def default(field: FieldInfo) -> str:
    """Return an option's default as a page shows it."""
    if field.is_required():
        return "needed"
    return f"`{field.default if isinstance(field.default, str) else json.dumps(field.default)}`"


@pytest.mark.parametrize("name", METHODS)
def test_option_tables_are_the_codes(name: str) -> None:
    fields = METHODS.options(name).model_fields
    heading = "| option | default | meaning |"
    if not fields:
        assert "## Options\n\nNone of its own" in PAGES[name]
        return
    expected = [[f"`{option}`", default(field), field.description] for option, field in fields.items()]
    assert table(PAGES[name], heading) == expected


def test_every_method_has_a_page_and_a_row() -> None:
    assert sorted(path.stem for path in (DOCS / "methods").glob("*.md")) == sorted([*PAGES, "README"])
    listed = [row[0] for row in table(INDEX, "| method | what | needs | learns from | paper |")]
    assert listed == [f"[{name}]({name}.md)" for name in METHODS]
    for name, text in PAGES.items():
        for part in ("Equations", "Options", "Profiles", "Ties, degenerate cases", "Open, and what we chose"):
            assert f"\n## {part}\n" in text, (name, part)
        assert f"{name}: " in " ".join(BLOCKS), name


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_load_in_a_small_study(name: str, tmp_path: Path) -> None:
    study = SMALL if "methods" in BLOCKS[name] else SMALL | {"methods": {"fedavg": {"method": "fedavg"}}}
    files = []
    for i, settings in enumerate((study, BLOCKS[name])):
        files.append(tmp_path / f"{i}.yaml")
        files[i].write_text(yaml.safe_dump(settings), encoding="utf-8")
    loaded = loading.load(loading.read(files))
    page = name.partition(":")[0]
    assert page in ("evaluation", *AROUND) or page in {m.method for m in loaded.methods.values()}
    assert page not in AROUND or any(m.rebalance and m.privacy for m in loaded.methods.values())


def test_released_and_paper_are_there_for_the_four_with_code_of_their_own() -> None:
    for page in ("ifca", "clove", "lcfl", "fedgwc"):
        assert {f"{page}: released", f"{page}: paper"} <= BLOCKS.keys()
    for paper in ("lcfl", "clove", "fedgwc", "rr-cluster"):
        assert f"evaluation: {paper}" in BLOCKS


def test_no_block_goes_untested() -> None:
    texts = [*PAGES.values(), INDEX, EVALUATION]
    assert sum(text.count("```yaml") for text in texts) == len(BLOCKS)


def test_every_evaluation_has_a_row() -> None:
    rows = table(EVALUATION, "| `evaluations:` | which model is scored | on whom | when | used by |")
    assert [row[0] for row in rows] == [f"`{name}`" for name in Evaluation.__args__]


def later_round(name: str, used: Engine) -> dict[str, Any]:
    """Return what a method's last round cost."""
    one_shot = METHODS[name].one_shot
    context = loop.context(used, **({"clustering": used.federation.true_cluster} if one_shot else {}))
    options: dict[str, Any] = {"clusters": 3} if "clusters" in METHODS.options(name).model_fields else {}
    options |= {"start": "initial"} if one_shot else {}
    return loop.run(METHODS.make(name, options), context, used)[1].rounds[-1]


@pytest.mark.parametrize("name", slow_but(["fedavg", "ifca", "cfl", "clove", "pacfl"], METHODS))
def test_costs_of_a_round_are_the_codes(name: str) -> None:
    rows = {row[0]: row[1:] for row in table(INDEX, "| method | models down | numbers up | forward passes |")}
    with engine(
        norm_and_dropout, images(groups=2), rounds=2, epochs=1, learning_rate=0.01, copies=METHODS[name].copies
    ) as used:  # buffers travel, too
        found, m = later_round(name, used), used.federation.clients
        samples = len(used.federation.splits["train"])
        size = {"K": 3, "P": used.layout.columns, "n": samples / m, "S": found["local_steps"] / m}
        size["H"] = 144 * 3 + 3  # what FedPer's clients keep: the last layer
        data = used.federation.splits["train"]
        owned = [len(np.unique(data.y[first:last])) for first, last in itertools.pairwise(data.offsets)]
        size |= {"C": sum(owned) / m, "D": 3, "d": 144}
        size["F"] = int(0.8 * samples / m)
    down, up, passes = (eval(formula, {"__builtins__": {}}, size) for formula in rows[name])
    assert found["bytes_down"] == pytest.approx(4 * m * down * size["P"], rel=1e-12)
    assert found["bytes_up"] == 4 * m * up
    assert found["client_forwards"] == m * passes


def in_bases(federation: Federation) -> int:
    """Numbers in the clients' bases: of each class up to 3 of its samples, times 5 numbers of a sample."""
    data = federation.splits["train"]
    classes = [np.bincount(data.y[first:last]) for first, last in itertools.pairwise(data.offsets)]
    return 5 * sum(int(np.minimum(counts, 3).sum()) for counts in classes)


@pytest.mark.parametrize("metric", METRICS)
def test_costs_of_a_distance_are_the_codes(metric: str) -> None:
    heading = "| metric | computed from | models down | numbers up | forward passes |"
    rows = {row[0]: row[1:] for row in table(PAGES["lcfl"], heading)}
    with engine(federation=uneven()) as used:
        m, size = used.federation.clients, used.layout.columns
        array = torch.randn(m, size, generator=torch.Generator().manual_seed(0))
        costs = measure(used, array, metric, {})[1]
        names = {"M": m, "p": used.layout.parameter_columns, "N": len(used.federation.splits["train"])}
        names["B"] = in_bases(used.federation)
    wanted, *formulas = rows[metric]
    assert wanted == METRICS.input(metric)
    down, up, passes = (eval(formula, {"__builtins__": {}}, names) for formula in formulas)
    assert costs == {"bytes_down": 4 * down * size, "bytes_up": 4 * up, "client_forwards": passes}


@pytest.mark.parametrize("metric", METRICS)
def test_costs_of_landmarks_are_the_codes(metric: str) -> None:
    heading = "| metric, r landmarks | models down | numbers up | forward passes |"
    rows = {row[0]: row[1:] for row in table(PAGES["lcfl"], heading)}
    chosen = np.array([0, 2])
    with engine(federation=uneven()) as used:
        m, size = used.federation.clients, used.layout.columns
        array = torch.randn(m, size, generator=torch.Generator().manual_seed(0))
        costs = measure(used, array, metric, {}, chosen=chosen)[1]
        sizes = used.federation.splits["train"].sizes
        names = {"M": m, "p": used.layout.parameter_columns, "r": 2, "N": sizes.sum(), "R": sizes[chosen].sum()}
        names["B"] = in_bases(used.federation)
    down, up, passes = (eval(formula, {"__builtins__": {}}, names) for formula in rows[metric])
    assert costs == {"bytes_down": 4 * down * size, "bytes_up": 4 * up, "client_forwards": passes}


def test_links_lead_somewhere() -> None:
    for path in [*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md"), DOCS.parent / "config/README.md"]:
        text = re.sub(r"^(`{3,}).*?^\1$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target, _, anchor in re.findall(r"\]\(([\w./-]*)(#?)([\w-]*)\)", text):
            place = (path.parent / target) if target else path
            assert place.exists(), (path.name, target)
            if not anchor:
                continue
            heads = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
            assert anchor in anchors, (path.name, target, anchor)


@pytest.mark.parametrize(("name", "expected"), [("lcfl", (0.30 + 0.29) / 2), ("lcfl-last", 0.59)])
def test_scores_of_lcfl_are_points_of_its_released_curve(name: str, expected: float) -> None:
    """Let a_n, the accuracy before training of models with n rounds behind them, be n / 100: our round n + 1 has it."""
    rounds = np.arange(1, 66)
    columns = {
        "round": rounds,
        "client": 0,
        "cluster": 0,
        "split": "test",
        "evaluation": "stale",
        "n": 100,
        "loss": 1.0,
    }
    history = pd.DataFrame(columns | {"correct": rounds - 1})
    score = Score(**BLOCKS[f"evaluation: {name}"]["score"]).model_dump()
    assert tables.pick(tables.curve(history, score), score)["accuracy"] == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pacfl-threshold", "rr-start"])
def test_figures_are_drawn_from_the_tables_beside_them(name, tmp_path, monkeypatch):
    folder = tmp_path / "docs" / name
    shutil.copytree(DOCS / name, folder)
    for picture in folder.glob("*.[ps][nv]g"):
        picture.unlink()
    drawn = runpy.run_path(str(folder / "draw.py"), run_name="drawn")
    if name == "rr-start":
        drawn["draw"](pd.read_csv(folder / "rr-start.csv"))
    else:
        monkeypatch.setattr("sys.argv", ["draw.py", "--draw"])
        drawn["main"]()
        there = (DOCS / name / "reached.csv").read_text()
        assert (folder / "reached.csv").read_text() == there
    assert {path.suffix for path in folder.glob("*.[ps][nv]g")} == {".svg", ".png"}
