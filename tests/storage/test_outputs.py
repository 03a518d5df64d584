"""Files that a user names to be written: nothing of somebody else's is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfl.claims import evidence
from clusterfl.claims.pages import readme, site
from clusterfl.cli import main
from clusterfl.errors import UserError
from clusterfl.pipeline.compare import page
from clusterfl.storage.outputs import check_output
from clusterfl.storage.store import rebuild


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("results/tiny", "data", "scans"):
        Path(place).mkdir(parents=True)
    for name in ("keep.csv", "own.csv", "results/tiny/history.parquet", "scans/1.png"):
        Path(name).write_text("client,age\n")
    Path("old.csv").write_text("ours\n1\n")
    Path("empty.csv").touch()
    Path("link.csv").symlink_to("results/tiny/history.parquet")


def check(path: str) -> None:
    check_output("--output", Path(path), "assign", lambda text: text.startswith("ours\n"), ["own.csv", Path("scans")])


@pytest.mark.parametrize(
    ("path", "words"),
    {
        "own.csv": "own.csv must stay: this command reads it, and nothing there is changed",
        "./scans/../own.csv": "must stay: this command reads it",
        "scans/new.csv": "lies in scans: this command reads it",
        "results/tiny/history.parquet": "lies in results: clusterfl keeps its own files there",
        "results/new.csv": "name a file elsewhere",
        "link.csv": "link.csv lies in results",
        "data/new.csv": "lies in data",
        "keep.csv": "keep.csv already exists, and clusterfl assign didn't write it; allowed: a new file, or one that",
        "/dev/null": "/dev/null already exists",
        "scans": "must stay",
        ".": "is a folder; name a file",
    }.items(),
)
def test_what_is_never_written(path: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        check(path)
    assert words in str(error.value) and str(error.value).startswith("--output: ")


@pytest.mark.parametrize("path", ["new.csv", "new/folder/new.csv", "old.csv", "empty.csv"])
def test_what_may_be_written(path: str) -> None:
    check(path)


def test_a_page_of_a_comparison_replaces_only_such_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--page", "keep.csv"]) == 2
    assert "--page: keep.csv already exists, and clusterfl compare didn't write it" in capsys.readouterr().err
    Path("page.html").write_text(f"<head>\n{page.MARK}\n")
    page.check_target(Path("page.html"), ["a", "b"])
    Path("page.html").write_text(f"<body>\n{page.OLDER[0]}\n")
    page.check_target(Path("page.html"), ["a", "b"])
    assert "{% else %}Two studies{% endif %}</p>" in (page.HERE / "compare.html.j2").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="lies in elsewhere/digits"):
        page.check_target(Path("elsewhere/digits/page.html"), ["a", "elsewhere/digits"])


@pytest.mark.parametrize("words", [["evidence"], ["evidence", "--merge", "one"], ["campaign"]])
def test_evidence_isnt_written_among_results(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """There `settings.json` of a study are those of its own run."""
    assert main([*words, "--to", "results"]) == 2
    assert "--to: results must stay: clusterfl keeps its own files there" in capsys.readouterr().err
    Path("other/tiny").mkdir(parents=True)
    Path("other/tiny/settings.json").write_text("{}")
    assert main([*words, "--to", "other"]) == 2
    assert "--to: other/tiny/settings.json already exists and has no settings.sha256" in capsys.readouterr().err
    Path("other/tiny/settings.sha256").touch()
    evidence.check_target(Path("other"))


def test_a_site_replaces_only_its_own_page_and_tables() -> None:
    Path("out").mkdir()
    site.check_target(Path("out"))
    Path("out/claims.parquet").touch()
    with pytest.raises(UserError, match=r"--out: out/claims.parquet already exists, and clusterfl site didn't"):
        site.check_target(Path("out"))
    Path("out/claims.html").write_text("<title>Insurance claims</title>")
    with pytest.raises(UserError, match=r"--out: out/claims.html already exists"):
        site.check_target(Path("out"))
    Path("out/claims.html").write_text(f"<head>\n{site.MARK}")
    site.check_target(Path("out"))
    Path("results/claims.parquet").touch()  # of `clusterfl claims`
    site.check_target(Path("results"))
    assert site.MARK in (site.HERE / "templates/site.html.j2").read_text(encoding="utf-8")


def test_claims_replace_tables_only_beside_a_readme_about_them() -> None:
    Path("README.md").write_text("# Insurance claims\n")
    readme.check_target(Path())
    Path("claims.parquet").touch()
    with pytest.raises(UserError, match=r"--write: claims.parquet already exists, and README.md has no table"):
        readme.check_target(Path())
    for marker in (readme.HOURS, "<!-- verdicts clove -->", "<!-- accuracies clove MNIST Table 1 -->"):
        Path("README.md").write_text(f"# Claims\n\n{marker}\n")
        readme.check_target(Path())


def test_what_makes_a_file_again_names_the_settings_of_its_study() -> None:
    """Without them Snakemake takes config.yaml, which may be another study's: no rule makes the file then."""
    assert rebuild(Path("results/tiny/a b.parquet")) == "rebuild it: snakemake --force 'results/tiny/a b.parquet'"
    Path("results/tiny/settings.json").touch()
    command = "snakemake --configfile results/tiny/settings.json --force results/tiny/summary.parquet"
    assert rebuild(Path("results/tiny/summary.parquet")) == f"rebuild it: {command}"
    assert rebuild(Path("data/a/samples.safetensors")) == "rebuild it: snakemake --force data/a/samples.safetensors"
