"""The project's own house: lock file, workflow's lint, a folder set up from the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

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

    texts = [(ROOT / name).read_text() for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md")]
    assert all(clusterfl.__version__ in text for text in texts)


def test_init_writes_a_folder_with_a_sound_study(tmp_path, monkeypatch, capsys):
    assert main(["init", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "Snakefile").exists()
    monkeypatch.chdir(tmp_path / "new")
    assert main(["check"]) == 0
    assert main(["init", str(tmp_path / "new")]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.slow
def test_init_writes_a_folder_that_plans(tmp_path):
    assert main(["init", str(tmp_path / "new")]) == 0
    found = snakemake("-n", folder=tmp_path / "new")
    assert found.returncode == 0, found.stderr
    assert "federate" in found.stdout + found.stderr


@pytest.mark.slow
def test_wheel_holds_the_workflow(tmp_path):
    """Build the wheel, install it into a folder, and set up and plan a project from there."""
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True)
    wheel = next(tmp_path.glob("clusterfl-*.whl"))
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", "-q", "--target", site, wheel], check=True)
    code = "import clusterfl.cli as c, sys; assert 'site' in c.__file__; sys.exit(c.main(['init', 'new']))"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(site), "PATH": ""}, check=True)
    for part in ("Snakefile", "config.yaml", "workflow/rules/federate.smk", "profiles/default/config.yaml"):
        assert (tmp_path / "new" / part).exists(), part


def test_workflow_is_lint_clean(tmp_path):
    for part in ("Snakefile", "config.yaml", "workflow"):
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, tmp_path / part)
    found = snakemake("--lint", folder=tmp_path)
    assert "good condition" in found.stdout + found.stderr
