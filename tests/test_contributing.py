"""CONTRIBUTING's text, followed in a copy of the package: a method, a distance and a dataset come with what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EDIT = re.compile(r"<!-- (file|row|end): (\S+)(?: below (\S+))? -->\n(`{3,})\w+\n(.*?)\n\4", re.DOTALL)
COPIED = ["src", "config.yaml", "pyproject.toml"]


def follow(folder: Path, heading: str) -> list[str]:
    """Do in a copy of the package what the text below a heading says; return the files that it touched."""
    for name in COPIED:
        place = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        place(ROOT / name, folder / name)
    shutil.copytree(ROOT / "docs/methods", folder / "docs/methods")
    section = re.split(r"^### ", TEXT, flags=re.MULTILINE)
    (section,) = [text for text in section if text.startswith(heading + "\n")]
    touched = []
    for kind, name, below, _, text in EDIT.findall(section):
        path = folder / name
        if kind == "file":
            assert not path.exists()
            path.write_text(text + "\n", encoding="utf-8")
        elif kind == "end":
            path.write_text(path.read_text(encoding="utf-8") + "\n" + text + "\n", encoding="utf-8")
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            start = re.match(r"\W*", text)[0] + below
            (found,) = [i for i, line in enumerate(lines) if re.match(re.escape(start) + r"\W", line)]
            path.write_text("\n".join([*lines[: found + 1], text, *lines[found + 1 :], ""]), encoding="utf-8")
        touched.append(name)
    return touched


def python(folder: Path, *arguments: str) -> str:
    """Run Python on the copy; return what it prints."""
    where = {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=os.environ | where, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clusterfl(folder: Path, *arguments: str) -> str:
    return python(folder, "-m", "clusterfl.cli", *arguments)


def study(folder: Path, **blocks: object) -> list[str]:
    """Write a study of a few rounds on four clients, and return the option that names it."""
    small = {
        "study": "small", "seeds": {"runs": [0]}, "training": {"rounds": 2}, "model": {"model": "mlp", "hidden": [4]},
        "federations": {"four": {"dataset": "digits", "partition": {"scheme": "iid", "clients": 4}}},
        "methods": {"fedavg": {"method": "fedavg"}},
    }  # fmt: skip
    (folder / "small.yaml").write_text(yaml.safe_dump(small | blocks), encoding="utf-8")
    return ["--config", "small.yaml"]


@pytest.mark.slow
def test_a_method(tmp_path):
    """Checker, schema, list of methods and its own page have it, and it runs."""
    touched = follow(tmp_path, "A method")
    assert [name for name in touched if name.startswith("src")] == [
        "src/clusterfl/methods/by_size.py", "src/clusterfl/methods/__init__.py"
    ]  # fmt: skip
    (row,) = json.loads(clusterfl(tmp_path, "methods", "by-size", "--json"))
    assert row["options"][0]["option"] == "clusters" and row["options"][0]["required"]
    variants = json.loads(clusterfl(tmp_path, "schema"))["$defs"]["MethodBlock"]["oneOf"]
    assert {"const": "by-size"} in [variant["properties"]["method"] for variant in variants]
    assert "by-size, a method with clusters=2: " in clusterfl(tmp_path, "test", "by-size")
    config = study(tmp_path, methods={"by-size": {"method": "by-size", "clusters": 5}})
    said = subprocess.run([sys.executable, "-m", "clusterfl.cli", "check", *config], cwd=tmp_path, text=True,
                          env=os.environ | {"PYTHONPATH": str(tmp_path / "src")}, capture_output=True)  # fmt: skip
    assert said.returncode == 2
    assert "methods.by-size.clusters: 5 clusters for 4 clients; allowed: 1 to 4" in said.stdout + said.stderr
    config = study(tmp_path, methods={"by-size": {"method": "by-size", "clusters": 2}})
    clusterfl(tmp_path, "run", *config)
    assert (tmp_path / "results/small/four/seed0/methods/by-size/history.parquet").exists()


@pytest.mark.slow
def test_a_method_meets_the_contract_and_the_pages_tests(tmp_path):
    follow(tmp_path, "A method")
    for name in ("tests/methods", "tests/pins"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("federations.py", "matrices.py", "conftest.py", "test_docs.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    for name in ("evaluation.md", "privacy.md"):
        shutil.copy(ROOT / "docs" / name, tmp_path / "docs" / name)
    for files in ("tests/methods/test_contract.py", "tests/test_docs.py"):
        said = python(
            tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", files, "-k", "by-size or page_and_a_row"
        )
        assert "100%" in said and "failed" not in said


@pytest.mark.slow
def test_a_distance(tmp_path):
    follow(tmp_path, "A distance")
    assert "largest-difference, a metric: 10 ok, " in clusterfl(tmp_path, "test", "largest-difference")
    config = study(
        tmp_path,
        warmups={"alone": {"rounds": 1}},
        distances={"largest": {"metric": "largest-difference", "warmup": "alone"}},
        clusterings={"largest": {"clusterer": "hierarchical", "distance": "largest", "clusters": 2}},
        methods={"lcfl": {"method": "lcfl", "clustering": "largest"}},
    )
    clusterfl(tmp_path, "run", *config)
    code = """
from clusterfl.storage.store import read_table
import numpy as np
found = read_table("results/small/four/seed0/distance/largest.parquet")["distance"]
assert found.shape == (4, 4) and not np.diag(found).any() and (found == found.T).all() and found.max() > 0
"""
    python(tmp_path, "-c", code)


@pytest.mark.slow
def test_a_dataset(tmp_path):
    follow(tmp_path, "A dataset")
    clusterfl(tmp_path, "download", "wine")
    assert "wine, a dataset: 6 ok, " in clusterfl(tmp_path, "test", "wine")
    assert json.loads((tmp_path / "data/wine/manifest.json").read_text())["content"]
    partition = {"scheme": "dirichlet", "clients": 4, "alpha": 5.0}
    config = study(tmp_path, federations={"cellars": {"dataset": "wine", "partition": partition}})
    clusterfl(tmp_path, "run", *config)
    assert (tmp_path / "results/small/cellars/seed0/methods/fedavg/history.parquet").exists()
