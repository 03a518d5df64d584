"""Which kernels compute: chosen by processor, recorded, and never mixed within a chain of jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import tiny, write_yaml

from clusterfl.cli import main
from clusterfl.engine import processor
from clusterfl.engine.processor import ASKED, AVX2, AVX512, CHOSEN, VARIABLES
from clusterfl.errors import UserError
from clusterfl.pipeline import revisions
from clusterfl.pipeline.checkpoint import Saved, Unfinished
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_json, write_json

ALL = {variable for said in VARIABLES.values() for variable in said}
MACHINES = {
    "Intel Xeon": ("GenuineIntel", AVX2 | AVX512, "intel-avx512", "AVX512,STRICT"),
    "Intel Core": ("GenuineIntel", AVX2, "intel-avx2", "AVX2,STRICT"),
    "AMD EPYC": ("AuthenticAMD", AVX2 | AVX512, "amd-avx512", "AVX2,STRICT"),
    "AMD Ryzen": ("AuthenticAMD", AVX2, "amd-avx2", "AVX2,STRICT"),
    "old": ("GenuineIntel", {"sse4_2"}, None, None),
}
RUN = Path("results/tiny/digits/seed0")


@pytest.fixture
def machine(monkeypatch):
    """Return what makes this process believe in another processor, with an environment in which nothing is set."""
    for variable in (ASKED, CHOSEN, *ALL, *processor.OTHERS):
        monkeypatch.delenv(variable, raising=False)

    def make(name: str) -> None:
        vendor, flags, *_ = MACHINES[name]
        found = {"vendor_id": vendor, "model name": name, "flags": " ".join(flags), "cpu family": "6", "model": "85"}
        monkeypatch.setattr(processor, "_cpuinfo", lambda: found)

    monkeypatch.setenv(CHOSEN, "auto")  # put back at the end, like what `choose` sets
    for variable in ALL:
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    return make


@pytest.mark.parametrize("name", MACHINES)
def test_the_best_branch_that_a_processor_has(machine, name):
    machine(name)
    processor.choose()
    _, _, branch, mkl = MACHINES[name]
    assert os.environ.get("MKL_CBWR") == mkl
    assert processor.branch() == (branch or f"intel-{os.uname().machine}")
    assert processor.name() == f"{name} (family 6, model 85)"


def test_one_branch_for_several_generations(machine, monkeypatch):
    monkeypatch.setenv(ASKED, "avx2")
    for name in ("Intel Xeon", "Intel Core"):
        machine(name)
        processor.choose()
        processor.check()
        assert processor.branch() == "intel-avx2" and os.environ["ATEN_CPU_CAPABILITY"] == "avx2"
    machine("old")
    with pytest.raises(UserError, match=r"can run neither avx512 nor avx2; allowed: auto$"):
        processor.check()


def test_what_is_set_outside_stays_and_is_named(machine, monkeypatch):
    machine("Intel Xeon")
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2")
    processor.choose()
    assert processor.branch() == "intel-avx512 MKL_CBWR=AVX2 MKL_ENABLE_INSTRUCTIONS=SSE4_2"


def test_a_process_that_is_started_chooses_for_itself(machine, monkeypatch):
    """As a job on a compute node, which has the environment of the login node's Snakemake."""
    machine("Intel Xeon")
    processor.choose()
    machine("AMD Ryzen")
    processor.choose()
    assert processor.branch() == "amd-avx2" and os.environ["MKL_CBWR"] == "AVX2,STRICT"


def test_other_branches_are_refused_with_the_way_to_go_on(machine):
    machine("Intel Xeon")
    processor.choose()
    here = processor.record()
    for there in ({}, here, {"branch": "cuda NVIDIA H200"}):
        processor.same_branch("it", there, here, "again")
    words = "it was computed on branch 'intel-avx2' .*; here is 'intel-avx512' .*; put CLUSTERFL_BRANCH=avx2 before the"
    with pytest.raises(UserError, match=words):
        processor.same_branch("it", {"branch": "intel-avx2", "processor": "Intel Core"}, here, "again")
    with pytest.raises(UserError, match=r"'amd-avx512' .*, whose results differ in the last bits; again; see docs"):
        processor.same_branch("it", {"branch": "amd-avx512"}, here, "again")


def test_a_checkpoint_of_another_branch_is_refused(tmp_path):
    here, there = ({"processor": name, "branch": f"{name}-avx2"} for name in ("intel", "amd"))
    saved = Saved(3, {"a": np.ones(1)}, {})
    Unfinished(tmp_path / "job", seconds=0.0, machine=there).at(3, lambda: saved)
    with pytest.raises(
        UserError, match=r"the checkpoint .* was computed on branch 'amd-avx2' .* or delete .*job to start"
    ):
        Unfinished(tmp_path / "job", machine=here).read()
    assert Unfinished(tmp_path / "job", machine=there).read().step == 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("branches"), Path.cwd()
    os.chdir(folder)
    write_yaml(Path("config.yaml"), tiny())
    assert main(["run", "--federation", "digits"]) == 0
    yield folder
    os.chdir(before)


def test_manifests_say_where_and_by_what(finished):
    found = read_json(manifest_path(RUN / "methods/ifca/history.parquet"))
    assert found["machine"] == processor.record()
    assert set(found["revisions"]) == {"dataset digits", "engine", "method ifca", "model mlp", "partition rotated"}
    checkout = Path(__file__).parents[2]
    asked = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert found["commit"] == (asked.stdout.strip() if (checkout / ".git").exists() else "")


def test_no_chain_of_two_branches(finished, capsys):
    """A method isn't trained from a warm-up of other kernels; one that needs none is."""
    for place in ("warmup/short/common.safetensors", "distance/loss.parquet"):
        path = manifest_path(RUN / place)
        write_json(path, read_json(path) | {"machine": {"processor": "another", "branch": "other-avx9"}})
    where = ["--federation", "digits", "--seed", "0", "--method"]
    capsys.readouterr()
    assert main(["federate", *where, "lcfl"]) == 2
    said = capsys.readouterr().err
    assert "was computed on branch 'other-avx9' (another)" in said and "make it again here: clusterfl" in said
    assert main(["federate", *where, "ifca"]) == 0


@pytest.mark.slow
@pytest.mark.skipif(len(processor.able()) < 2, reason="the processor has one branch only")
def test_another_branch_is_recorded(finished, tmp_path):
    """A method's jobs by AVX2: their manifests name another branch."""
    shutil.copy("config.yaml", tmp_path)
    command = [sys.executable, "-m", "clusterfl.cli", "run", "--method", "fedavg"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {ASKED: "avx2"}, check=True, capture_output=True)
    manifest = read_json(tmp_path / manifest_path(RUN / "methods/fedavg/history.parquet"))
    assert manifest["machine"]["branch"] == f"{processor.vendor()}-avx2"


def test_an_option_has_a_revision_of_its_own_where_it_is_given() -> None:
    assert revisions.of_options(["method clove"], {"stable_rounds": 3, "clusters": 4}) == ["method clove stable_rounds"]
    assert revisions.of_options(["method clove"], {"stable_rounds": 0, "clusters": 4}) == []
    assert revisions.of_options([], {"stable_rounds": 3}) == []
