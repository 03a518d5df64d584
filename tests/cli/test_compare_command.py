"""`clusterfl compare`: what it is given, what it refuses, and what it leaves on stdout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterfl.cli import main
from clusterfl.pipeline.compare import comparison, page, side


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a"], ["one study is given, a", "--methods A B"]),
        (["a", "b", "c"], ["3 studies are given, a, b, c", "allowed: two"]),
        (["a", "b", "--methods", "x", "y"], ["two methods of one study", "2 are given: a, b"]),
        (["digit", "digits"], ["no study 'digit' under results/", "did you mean 'digits'?"]),
        (["digits", "elsewhere/results/none"], ["no report yet", "clusterfl report digits"]),
    ],
)
def test_refusals_name_what_is_found_and_the_next_step(
    arguments: list[str], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("results/digits").mkdir(parents=True)
    Path("results/digits/settings.json").write_text("{}")
    assert main(["compare", *arguments]) == 2
    found = capsys.readouterr().err
    assert all(words in found for words in said), found


def test_a_folder_elsewhere_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert f"no study '{tmp_path}'" in capsys.readouterr().err


def test_json_is_alone_on_stdout_and_the_page_is_named_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(side, "read", lambda name: name)
    nothing = comparison.Comparison(
        None, "a", "b", {"split": "test"}, [], [], [], [], [], (0, 0), comparison.Files(0, [], 0, 0), [], []
    )
    monkeypatch.setattr(comparison, "studies", lambda a, b: nothing)
    monkeypatch.setattr(page, "write", lambda found, path: path)
    assert main(["compare", "a", "b", "--json", "--page", str(tmp_path / "x.html")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["a"] == "a"
    assert said.err == f"written: {tmp_path / 'x.html'}\n"
