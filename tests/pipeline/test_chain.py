"""The chain's declarations beside what else says the same: the workflow's rules, and the stages' files."""

import re
from importlib import import_module
from itertools import pairwise

import pytest
from conftest import ROOT

from clusterfl.pipeline.chain import STAGES

RULE = re.compile(r"^(?:rule (\w+)|use rule (\w+) as (\w+) with):$", re.M)
OUTPUT = re.compile(r"^        (\w+)=[^\"]*\"([^\"]+)\"", re.M)


def rules() -> dict[str, dict[str, str]]:
    """Return the files that each rule of the workflow states, by their names there."""
    found = {}
    for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        text = path.read_text()
        starts = list(RULE.finditer(text))
        for start, end in pairwise([*starts, None]):
            own = text[start.end() : end and end.start()]
            block = re.search(r"^    output:\n((?:        .*\n)+)", own, re.M)
            assert block is not None, start[0]
            found[start[1] or start[3]] = dict(OUTPUT.findall(block[1]))
    return found


@pytest.mark.parametrize("rule", ["trial", *STAGES])
def test_a_rule_states_the_files_of_its_stage(rule):
    """With the block's name as wildcard; a trial's lie in a folder of its method's."""
    stage = STAGES["federate" if rule == "trial" else rule]
    names = {"results": "results", "data": "data", "name": f"{{{stage.block}}}", "part": f"{{{stage.part}}}"}
    names |= {key: f"{{{key}}}" for key in ("study", "federation", "seed")}
    if rule == "trial":
        names["name"] = "{method}/trials/{trial}"
    assert rules()[rule] == {key: one.path.format(**names) for key, one in stage.outputs.items()}


def test_there_is_a_rule_and_a_function_for_each_stage():
    """And no rule for anything else."""
    assert rules().keys() == {*STAGES, "trial"}
    assert all(callable(import_module(f"clusterfl.pipeline.stages.{name}").run) for name in STAGES)
