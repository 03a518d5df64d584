"""The order of the rooms: what `lint-imports` holds in `make check`, and that it does hold it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT
from federations import slow_but

PACKAGE = ROOT / "src" / "clusterfl"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the imports of a copy of the package."""
    given = os.environ | {"PYTHONPATH": str(folder / "src")}
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)


def test_there_are_at_most_twenty_rooms():
    """A newcomer sees the whole house at a glance."""
    assert len([path for path in PACKAGE.iterdir() if path.name != "__pycache__"]) <= 20


FOUND = [
    (None, "", "Contracts: 2 kept, 0 broken."),
    ("storage/store.py", "from ..pipeline import jobs", "clusterfl.storage is not allowed to import clusterfl.p"),
    ("engine/batches.py", "def late():\n    from ..methods import ifca", "clusterfl.engine is not allowed to"),
    ("config/study.py", "from ..claims import verdicts", "clusterfl.config is not allowed to import clusterfl.cl"),
    ("engine/chain.py", "from .dense import kinds", "No cycles are allowed in clusterfl.engine"),
    ("mine.py", "", "mine"),  # a room that has no place in the order
]


@pytest.mark.parametrize("file, line, said", slow_but(FOUND[1:2], FOUND))
def test_an_import_that_runs_up_or_in_a_circle_is_found(tmp_path, file, line, said):
    """Also one inside a function, and a new room without a place."""
    shutil.copytree(PACKAGE, tmp_path / "src" / "clusterfl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    if file is not None:
        with open(tmp_path / "src" / "clusterfl" / file, "a", encoding="utf-8") as stream:
            stream.write(f"\n{line}\n")
    found = lint(tmp_path)
    assert found.returncode == (file is not None) and said in found.stdout


# What lies beside the package, and is tested as a whole.
BESIDE = {"benchmarks", "contributing", "docs", "examples", "readme", "rooms"}
# Tests across all rooms, with a harness of their own, and of the site that is made of docs/.
ACROSS = {"fuzz", "slurm", "docs"}


def misplaced(tests: Path) -> list[str]:
    """Return the test files that are neither in a room's folder nor of a single module or of what lies beside it."""
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in PACKAGE.glob("*.py")} | BESIDE
    found = []
    for file in sorted(tests.rglob("test_*.py")):
        *folders, name = file.relative_to(tests).parts
        here = folders[0] in rooms | ACROSS if folders else file.stem.removeprefix("test_") in modules
        if not here:
            found.append("/".join([*folders, name]))
    return found


def test_every_test_is_in_the_room_of_what_it_tests(tmp_path):
    """tests/ROOM/ mirrors src/clusterfl/ROOM/; directly in tests/ are those of the package's single modules."""
    assert misplaced(ROOT / "tests") == []
    for name in ("engine/test_dense.py", "cellar/test_wine.py", "test_streams.py", "test_everything.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert misplaced(tmp_path) == ["cellar/test_wine.py", "test_everything.py"]


def test_the_picture_shows_the_order_that_is_held():
    """docs/figures/rooms.svg, drawn by rooms.py beside it, and the contract's layers."""
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    held = [name for layer in layers for name in layer.split(" : ")]
    picture = (ROOT / "docs" / "figures" / "rooms.svg").read_text()
    assert re.findall(r'font-weight="bold">(\w+)<', picture) == held
    assert "figures/rooms.svg" in (ROOT / "docs" / "architecture.md").read_text()
