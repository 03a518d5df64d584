"""`clusterfl methods`: what the classes declare, and nothing heavy is imported for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfl.cli import main
from clusterfl.methods import METHODS

ROOT = Path(__file__).parents[2]


def test_every_method_has_a_line(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(METHODS)]] == list(METHODS)
    kinds = {line.split()[0]: line.split()[1] for line in lines[1 : 1 + len(METHODS)]}
    assert [name for name, kind in kinds.items() if kind == "one-shot"] == ["lcfl"]


@pytest.mark.parametrize("name", METHODS)
def test_options_are_the_fields(name, capsys):
    assert main(["methods", name, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    fields = METHODS.options(name).model_fields
    assert [one["option"] for one in found["options"]] == list(fields)
    for one in found["options"]:
        field = fields[one["option"]]
        assert one["required"] == field.is_required() and one["meaning"] == field.description
        assert field.is_required() or one["default"] == field.default
    assert found["what"] and "See the" not in found["what"]


def test_allowed_values_are_words(capsys):
    assert main(["methods", "fedgwc"]) == 0
    out = capsys.readouterr().out
    assert "number above 0 at most 1 or relative or null" in out and "whole number at least 2 or relative" in out
    assert "(needed)" not in out
    assert main(["methods", "ifca"]) == 0
    assert "clusters     (needed)  whole number above 0" in capsys.readouterr().out


def test_a_method_of_ones_own_in_this_folder(tmp_path):
    """In a process of its own, which looks along its command's folder and not along this one."""
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom clusterfl.methods.ifca import IFCA\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Sticky(IFCA):\n    'It sticks.'\n    margin: float = 0.05\n"
    )
    command = [Path(sys.executable).parent / "clusterfl", "methods", "mine:Sticky", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["what"] == "It sticks" and found["options"][-1]["option"] == "margin"


def test_a_wrong_name_is_answered_with_the_nearest(capsys):
    assert main(["methods", "iffca"]) == 2
    assert "unknown method 'iffca'" in (said := capsys.readouterr().err) and "my_module:Class" in said


def test_no_torch_is_imported_for_it():
    """Nor for checking a study: methods' options are fields of classes, which are imported."""
    code = """
import sys
from pathlib import Path
from clusterfl.config.loading import load, read
from clusterfl.methods.listing import listing
load(read([Path(sys.argv[1])]))
assert listing().count("\\n") > 12
print("torch" in sys.modules)
"""
    command = [sys.executable, "-c", code, ROOT / "config.yaml"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
