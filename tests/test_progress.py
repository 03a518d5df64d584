"""Progress: few lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
import sys

from clusterfl import progress


def test_a_log_gets_few_lines(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.bar("training", 7200) as tell:
        for second in range(7200):  # two hours, a round each second
            now[0] = float(second)
            tell(second, "accuracy 50 %")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [f"training: {s} of 7200 in {s}.0 s; accuracy 50 %" for s in (10, 20, 40)]
    assert len(lines) == 18 and lines[-1].startswith("training: 7200 done")


def test_a_terminal_gets_a_bar(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.bar("training", 3) as tell:
        for i in range(3):
            tell(i + 1, "words")
    assert "training: 3 done" in terminal.getvalue()
