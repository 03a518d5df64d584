"""The project's own house: lock file, workflow's lint, a folder set up from the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, tiny, write_yaml

from clusterfl.cli import main


def snakemake(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_lock_file_is_installable_anywhere():
    lines = (ROOT / "requirements.lock").read_text().split()
    assert len(lines) > 80
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", line), f"{line}: no local version, address or path belongs here"
    for name in ("torch", "torchvision", "numpy", "pandas", "scikit-learn", "pyarrow", "pytest", "snakemake"):
        assert any(line.lower().startswith(f"{name}==") for line in lines)


def test_versions_agree():
    import clusterfl

    texts = [(ROOT / name).read_text() for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "codemeta.json")]
    assert all(clusterfl.__version__ in text for text in texts)


def test_init_writes_a_folder_with_a_sound_study(tmp_path, monkeypatch, capsys):
    assert main(["init", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "Snakefile").exists()
    monkeypatch.chdir(tmp_path / "new")
    assert main(["check"]) == 0
    assert main(["init", str(tmp_path / "new")]) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.slow
def test_init_writes_a_folder_that_plans(tmp_path):
    assert main(["init", str(tmp_path / "new")]) == 0
    found = snakemake("-n", folder=tmp_path / "new")
    assert found.returncode == 0, found.stderr
    assert "federate" in found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_what_make_dist_builds_does_a_study_without_a_checkout(kind, tmp_path):
    """Installed into a folder of its own it sets up a project, runs a study there to its report, and plans one."""
    subprocess.run(["hatchling", "build", "--directory", tmp_path / "dist"], cwd=ROOT, check=True, capture_output=True)
    (built,) = (tmp_path / "dist").glob(f"clusterfl-*.{kind}")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "-q", "--target", "site"]
    subprocess.run([*install, built], cwd=tmp_path, check=True)
    there = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}

    def python(*words, folder=tmp_path):
        done = subprocess.run([sys.executable, *words], cwd=folder, env=there, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(tmp_path / "site") in python("-c", "import clusterfl; print(clusterfl.__file__)")
    python("-m", "clusterfl.cli", "init", "new")
    new = tmp_path / "new"
    for part in ("Snakefile", "workflow/Snakefile", "workflow/rules/federate.smk", "profiles/default/config.yaml"):
        assert (new / part).exists(), part
    write_yaml(new / "mine.yaml", tiny())
    python("-m", "clusterfl.cli", "run", "--config", "mine.yaml", folder=new)
    assert (new / "results/tiny/report.html").stat().st_size > 10_000
    assert "total" in python("-m", "snakemake", "-n", folder=new)


@pytest.mark.slow
def test_sources_hold_nothing_that_git_ignores(tmp_path):
    made = subprocess.run(["hatchling", "build", "-t", "sdist", "-d", tmp_path], cwd=ROOT, capture_output=True)
    assert made.returncode == 0, made.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()} - {"PKG-INFO"}
    kept = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if kept.returncode:
        pytest.skip("no checkout by git")
    # The link `profiles` is followed.
    assert {name for name in names if not name.startswith("profiles/")} <= set(kept.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("where", ["workflow/Snakefile", "Snakefile"])
def test_the_workflow_is_found_from_each_place(where, tmp_path):
    """The one of the catalog's standard, and the top one, plan the shipped study in an empty folder."""
    found = snakemake("--snakefile", str(ROOT / where), "--directory", str(tmp_path), "-n", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert re.search(r"^total +51$", found.stdout + found.stderr, re.MULTILINE)


MODULE = """configfile: "config/config.yaml"

module clusterfl:
    snakefile: "{}"
    config: config

use rule * from clusterfl
"""


@pytest.mark.slow
def test_another_workflow_may_take_the_rules_over(tmp_path):
    """As the catalog's deployment does; the settings are written before the first job all the same."""
    for folder in ("workflow", "config"):
        (tmp_path / folder).mkdir()
    (tmp_path / "workflow/Snakefile").write_text(MODULE.format(ROOT / "workflow/Snakefile"), encoding="utf-8")
    write_yaml(tmp_path / "config/config.yaml", tiny())
    made = "results/tiny/digits/seed0/partition.parquet"
    found = snakemake("--cores", "1", made, folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert (tmp_path / made).exists() and (tmp_path / "results/tiny/settings.json").exists()


def test_the_catalogs_standard():
    """What the generator of snakemake/snakemake-workflow-catalog reads; lint and format are checked elsewhere."""
    assert (ROOT / "workflow/Snakefile").exists() and (ROOT / "config/README.md").exists()
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage["software-stack-deployment"]["conda"] and usage["report"] and "desc" in usage["mandatory-flags"]
    words = (ROOT / "README.md").read_text().lower()
    assert "snakemake" in words and "workflow" in words


@pytest.mark.parametrize("source, words", [(None, "isn't set"), ("nowhere", "='nowhere' isn't there"), (".", "")])
def test_an_environment_of_conda_takes_the_package_from_a_place(source, words, tmp_path):
    """Never by a name that nobody has registered; pip itself is replaced here by what says its arguments."""
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | ({} if source is None else {"CLUSTERFL_SOURCE": source})
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python").chmod(0o755)
    script = ROOT / "workflow/envs/clusterfl.post-deploy.sh"
    done = subprocess.run(["bash", script], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (2 if words else 0) and words in done.stderr
    assert done.stdout == ("" if words else "-m pip install .\n")
    packages = yaml.safe_load(script.with_name("clusterfl.yaml").read_text())["dependencies"]
    assert all(isinstance(one, str) and "clusterfl" not in one for one in packages)


@pytest.mark.slow
def test_workflow_is_lint_clean(tmp_path):
    for part in ("Snakefile", "config.yaml", "workflow"):
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, tmp_path / part)
    found = snakemake("--lint", folder=tmp_path)
    assert "good condition" in found.stdout + found.stderr
