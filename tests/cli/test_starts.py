"""What a command does before its stage computes."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace

from clusterfl.cli.program import main
from clusterfl.errors import UserError
from clusterfl.pipeline import execute

CONFIG = Path(__file__).parents[2] / "config.yaml"


def test_garbage_is_collected_from_when_a_stage_computes(monkeypatch, tmp_path, capsys):
    """Imports leave none, and looking for it took a tenth of a start."""
    seen = []

    def run(work):
        seen.append(gc.isenabled())
        raise UserError("enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execute, "check_inputs", lambda job: seen.append(gc.isenabled()))
    monkeypatch.setattr(execute, "input_digests", lambda job: {})
    monkeypatch.setattr(execute, "import_module", lambda name: SimpleNamespace(run=run))
    assert main(["partition", "--config", str(CONFIG), "--federation", "rotated-digits", "--seed", "0"]) == 2
    assert seen == [False, True] and gc.isenabled()
    assert "enough" in capsys.readouterr().err
