"""Settings: what is generated stays in step, what is wrong is reported with the path of the key."""

from __future__ import annotations

import argparse
import copy
import difflib
import json
import math
import os

import pytest
import yaml
from conftest import ROOT, put, tiny
from federations import slow_but

from clusterfl.cli import main
from clusterfl.cli.common import option
from clusterfl.config import loading
from clusterfl.config.schema import DIGITS, default_yaml, json_schema
from clusterfl.config.text import parse, write
from clusterfl.data import DATASETS
from clusterfl.errors import UserError
from clusterfl.pipeline.jobs import Plan


@pytest.mark.parametrize(
    "path, made, command",
    [
        ("config.yaml", default_yaml, "clusterfl schema --format yaml > config.yaml"),
        ("config/config.yaml", default_yaml, "cp config.yaml config"),
        ("workflow/config.schema.json", json_schema, "clusterfl schema > workflow/config.schema.json"),
    ],
)
def test_generated_files_are_in_step(path, made, command):
    kept = (ROOT / path).read_text(encoding="utf-8")
    difference = "\n".join(difflib.unified_diff(kept.splitlines(), made().splitlines(), path, "generated", lineterm=""))
    assert not difference, f"{difference}\nwrite it again: {command}"


STUDIES = ROOT / "workflow/studies"
SHIPPED = [
    *([f"{name}.yaml"] for name in ("lcfl", "rr_cluster", "clove", "fedgwc")),
    *([f"{name}.yaml", f"{name}.lite.yaml"] for name in ("lcfl", "rr_cluster", "clove", "fedgwc")),
    ["fedgwc.yaml", "fedgwc.small.yaml"], ["rr_cluster.yaml", "rr_lines.yaml"], ["rr_start.yaml"],
    ["reduced/bad-clients.yaml"], ["reduced/rr-cluster.yaml"],
    *(["reduced/common.yaml", f"reduced/{name}.yaml"] for name in ("concept-shift", "label-skew", "rotated-mnist")),
    ["reduced/model-collapse.yaml"],
]  # fmt: skip


def test_every_shipped_study_is_looked_at():
    assert {name for names in SHIPPED for name in names} == {
        str(path.relative_to(STUDIES)) for path in STUDIES.rglob("*.yaml")
    }


@pytest.mark.parametrize(
    "names", slow_but([["lcfl.yaml"], ["fedgwc.yaml", "fedgwc.small.yaml"]], SHIPPED), ids=" ".join
)
def test_jobs_find_the_settings_that_were_planned(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned = Plan.from_files([STUDIES / name for name in names])
    planned.save()
    found = Plan.from_files([planned.snapshot])
    for ours, theirs in zip(planned.jobs(), found.jobs(), strict=True):
        assert (theirs.first, theirs.settings) == (ours.first, ours.settings)
        assert theirs.settings_digest == ours.settings_digest, "1 is equal to 1.0, but not the same text"


@pytest.mark.parametrize("number", ["2e-05", "-1.5e3", "1E+16", ".5e-3", "2.0e-5"])
def test_numbers_with_an_exponent_are_what_json_reads(number):
    assert parse(f"epsilon: {number}") == {"epsilon": float(number)}
    assert option(f"epsilon={number}") == ("epsilon", float(number))


@pytest.mark.parametrize("text", ["1e5e5", "e5", "1e", ".e5", "'2e-05'", "0x1e-5", "1e-5a"])
def test_other_values_with_an_e_stay_text(text):
    assert parse(f"name: {text}") == {"name": text.strip("'")}


@pytest.mark.parametrize(
    "text", ["12e3", "2e-05", "1E+16", ".5e3", "1e", "007", "1_0", "0x1f", "yes", "null", "1:30", "", "é\n#"]
)
@pytest.mark.parametrize("style", [None, True, False])
def test_a_text_is_read_as_it_was_written(text, style):
    value = {text: [text, 12e3, 2e-05, 1e-300, True, None]}
    assert parse(write(value, default_flow_style=style)) == value


def test_the_default_configuration_is_the_default_study():
    kept, short = (Plan.from_settings(s) for s in (loading.read([ROOT / "config.yaml"]), DIGITS))
    for stage, name in [("warmup", "alone"), ("distance", "loss"), ("cluster", "lcfl"), ("federate", "ifca")]:
        one, other = (p.job(stage, "rotated-digits", 0, name) for p in (kept, short))
        assert one.settings == other.settings
    assert len(list(kept.jobs())) == len(list(short.jobs())) == 50


@pytest.mark.slow
def test_schema_accepts_the_default_and_refuses_misspelt_keys():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(json_schema())
    jsonschema.validate(yaml.safe_load(default_yaml()), schema)
    for path in (["seeds", "run"], ["methods", "ifca", "cluster"], ["training", "learning_rat"]):
        wrong = copy.deepcopy(DIGITS)
        place = wrong
        for step in path[:-1]:
            place = place.setdefault(step, {})
        place[path[-1]] = 1
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def changed(path: str, value):
    """The default study with one value changed; names in the path may have dots."""
    return put(copy.deepcopy(DIGITS), path, value, separator="/")


WRONG = {
    "seeds/runs": ([0, 1, 0], "seeds.runs: seed 0 is given 2 times"),
    "trainig": ({}, "trainig: unknown key (value {}); did you mean 'training'?"),
    "training/learning_rat": (0.1, "training.learning_rat: unknown key (value 0.1); did you mean 'learning_rate'?"),
    "training/epochs": (2.5, "training.epochs: found 2.5; it should be a valid integer"),
    "training/participation": (1.5, "training.participation: found 1.5; it should be less than or equal to 1"),
    "training/decay": (0.9, "decay needs schedule"),
    "training/decays_before": (1, "decays_before needs schedule"),
    "training/optimizer_state": ("kept", "optimizer_state: kept, but SGD with momentum: 0 has nothing to keep"),
    "federations/rotated-digits/training": (
        {"epochs": 5, "steps": 7},
        "epochs: 5 and steps: 7; give one of them, and set the other to null",
    ),
    "methods/ifca/training": (
        {"optimizer": "adam", "momentum": 0.9},
        "momentum: 0.9, but Adam has its own; set momentum: 0 or optimizer: sgd",
    ),
    "training/divisor": ("ratio", "divisor: ratio counts clients, so it needs weights: uniform"),
    "study": ("../outside", "study: found '../outside'; a name has letters, digits"),
    "methods/ifca/clusters": (0, "methods.ifca.clusters: found 0; it should be greater than 0"),
    "methods/ifca/method": ("icfa", "methods.ifca.method: unknown method 'icfa'; did you mean 'ifca'?"),
    "methods/ifca/cluster": (
        3,
        "methods.ifca.cluster: unknown key (value 3) for method 'ifca'; did you mean 'clusters'?",
    ),
    "methods/lcfl/clustering": ("lfcl", "methods.lcfl.clustering: there is no block 'lfcl'; did you mean 'lcfl'?"),
    "methods/fedavg/training": (
        {"rounds": -1},
        "methods.fedavg.training.rounds: found -1; it should be greater than or equal to 0",
    ),
    "methods/lcfl/training": ({"rounds": 1}, "rounds include the warm-up, so give more"),
    "score/ddof": (2, "score.ddof: found 2; allowed: 0, 1"),
    "warmups/alone/training": (
        {"epochs": 20, "rounds": 3},
        "warmups.alone.training.rounds: found 3, which has no effect: a warm-up has the rounds 1 of its own",
    ),
    "federations/rotated-digits/warmups": (
        {"alone": {"training": {"rounds": 3}}},
        "federations.rotated-digits.warmups.alone.training.rounds: found 3, which has no effect",
    ),
    "methods/lcfl/model": (
        {"model": "linear"},
        "methods.lcfl.model: found 'linear', but the method continues from a warm-up and has its network; leave it",
    ),
    "methods/goes-on": (
        {"method": "ifca", "clusters": 4, "clustering": "lcfl"},
        "methods.goes-on.clustering: found 'lcfl', but method 'ifca' makes its own groups, if any; only for one-shot "
        "methods: lcfl, or one of your own with one_shot = True; leave it out",
    ),
    "methods/goes-on-swept": (
        {"method": "fedavg", "sweep": {"clustering": ["lcfl", "lcfl-gradcos"]}},
        "methods.goes-on-swept.sweep.clustering: found 'lcfl', but method 'fedavg' makes its own groups, if any",
    ),
    "methods/ifca/clusterin": (
        4,
        "methods.ifca.clusterin: unknown key (value 4) for method 'ifca'; did you mean 'clusters'? allowed: clusters, ",
    ),
    "methods/ifca/model": ({"model": "mlpp"}, "methods.ifca.model.model: unknown model 'mlpp'; did you mean 'mlp'?"),
    "methods/fedavg/model": (
        {"model": "mlp", "hiden": [4]},
        "methods.fedavg.model.hiden: unknown key (value [4]) for model 'mlp'; did you mean 'hidden'?",
    ),
    "methods/ifca/sweep": ({"model": [{"model": "linear"}, {"model": "mlp"}]}, "sweep.model: this key can't be swept"),
    "methods/close": (
        {"method": "fedproto", "model": {"model": "linear"}},
        "its last layer is its only one, and features would be the samples themselves",
    ),
    "clusterings/lcfl/clusters": (41, "clusterings.lcfl.clusters: 41 clusters for the 40 clients"),
    "clusterings/lcfl-diffnorm/clusters": (
        "silhuette",
        "clusterings.lcfl-diffnorm.clusters: found 'silhuette'; it should be a valid integer, unable to parse string "
        "as an integer; or: did you mean 'silhouette'? allowed: eigengap, silhouette",
    ),
    "clusterings/cut": (
        {"clusterer": "hierarchical", "distance": "loss"},
        "clusterings.cut.clusters: missing; give a number, silhouette or eigengap, or a distance to cut at: threshold "
        "or eps",
    ),
    "clusterings/cut-twice": (
        {"clusterer": "hierarchical", "distance": "loss", "threshold": 0.5, "clusters": 3},
        "clusterings.cut-twice.clusters: found 3 and threshold 0.5, which determines the number of clusters by itself",
    ),
    "clusterings/lcfl/most": (1, "clusterings.lcfl.most: found 1; it should be greater than or equal to 2"),
    "clusterings/lcfl/margin": (0.9, "clusterings.lcfl.margin: found 0.9; it should be greater than or equal to 1"),
    "distances/loss/warmup": ("later", "distances.loss.warmup: there is no block 'later'; allowed: alone"),
    "distances/loss/metric": ("my_metric:f", "no module 'my_metric' beside the configuration"),
    "federations/rotated-digits/dataset": ("digit", "unknown dataset 'digit'; did you mean 'digits'?"),
    "federations/rotated-digits/partition/clients": (
        "many",
        "partition.clients: found 'many'; it should be a valid integer",
    ),
    "federations/words": (
        {"dataset": "agnews", "partition": {"scheme": "rotated", "clients": 4, "angles": [0, 90]}},
        "federations.words.partition.scheme: rotated, angles: 'rotate90' needs images [channels, height, width]; the "
        "samples of dataset 'agnews' have shape (200,); choose another dataset, or other groups",
    ),
    "federations/dim": (
        {"dataset": "agnews", "partition": {"scheme": "iid", "clients": 4, "domains": [{"transform": "blur(2)"}]}},
        "federations.dim.partition.domains.0.transform: 'blur(2)' needs images [channels, height, width]",
    ),
    "federations/rotated-digits/partition/angles": ([0, 45], "partition.angles.1: found 45; "),
    "engine/device": ("quantum", "engine.device: found 'quantum'; it is auto, cpu, cuda, or one device such as cuda:1"),
    "methods/oracle/method": ("ifca", "methods.oracle.clusters: missing; it is K, the number of models"),
    "methods/ifca": (
        {"method": "ifca", "clusters": 41},
        "methods.ifca.clusters: 41 clusters for 40 clients; allowed: 1 to 40 (federation 'rotated-digits')",
    ),
    "federations/logs": (
        {"dataset": "digits", "partition": {"scheme": "iid", "clients": 40}},
        "federations.logs: the study's folder already uses the name 'logs'; choose another name",
    ),
    "clusterings/lcfl.scores": (
        {"clusterer": "spectral", "distance": "loss", "clusters": 2},
        "clusterings.lcfl.scores: files with this ending belong to another result; choose another name",
    ),
    "score/at": (
        31,
        "score.at: found 31, a round in which no method is scored (federation 'rotated-digits'); allowed: rounds 0 to "
        "30, final or best; or more training.rounds",
    ),
    "score": ({"at": -1}, "score.at: found -1, a round in which no method is scored"),
    "score/evaluation": ("stale", "add it to training.evaluations"),
    "training/learning_rate": (math.inf, "training.learning_rate: found inf; it should be a finite number"),
    "federations/rotated-digits/partition/validation": (math.nan, "partition.validation: found nan; it should be a"),
    "methods/soft": ({"method": "fedsoft", "pull": math.inf}, "methods.soft.pull: found inf; it should be a finite"),
    "methods/long": (
        {"method": "fedavg", "training": {"steps": 5, "epochs": 2}},
        "methods.long.training: epochs: 2 and steps: 5; give one of them, and set the other to null",
    ),
    "baseline": ("fedavgg", "baseline: there is no block 'fedavgg'; did you mean 'fedavg'?"),
    "methods": ({}, "methods: found {}; needs at least 1 entry"),
    "federations": (
        ...,
        "federations: missing; it is datasets and their partitions; if this file only changes a study, give the "
        "study's file first: --config config.yaml mine.yaml",
    ),
    "federations/rotated-digits/partition": (
        {"scheme": "label-skew", "clients_per_cluster": 4},
        "all pairs (AG News); allowed: all-but-one, every-pair, overlapping, pairs, single",
    ),
}


@pytest.mark.parametrize("path", WRONG)
def test_wrong_settings_are_reported(path):
    value, words = WRONG[path]
    with pytest.raises(UserError) as caught:
        loading.load(changed(path, value), "config.yaml")
    assert words in str(caught.value)
    assert str(caught.value).startswith("config.yaml: ") and "nothing was run" in str(caught.value)


def test_a_limit_may_be_infinite():
    assert loading.load(changed("training/largest_update", math.inf)).training.largest_update == math.inf


def test_a_round_between_evaluations_has_no_score():
    settings = changed("training/evaluate_every", 4) | {"score": {"at": 10}}
    with pytest.raises(UserError, match="allowed: rounds 0 to 30, every 4th and the last, final or best"):
        loading.load(settings)
    for at in (8, 30, 0):
        assert loading.load(settings | {"score": {"at": at}}).score.at == at
    settings["methods"]["ifca"]["training"] = {"evaluate_every": 5}  # the others' cells are empty
    assert loading.load(settings).score.at == 10


def test_all_problems_are_reported_at_once():
    wrong = changed("methods/ifca/clusters", 0) | {"baseline": "nobody"}
    with pytest.raises(UserError, match="2 problems"):
        loading.load(wrong)


def test_overrides_win_in_order_and_steps_replace_epochs():
    settings = changed("federations/rotated-digits/training", {"learning_rate": 0.5, "rounds": 7})
    settings["methods"]["fedavg"]["training"] = {"learning_rate": 0.2, "steps": 3}
    study = loading.load(settings)
    fedavg = study.training_for("rotated-digits", study.methods["fedavg"].training)
    assert (fedavg.learning_rate, fedavg.rounds, fedavg.steps, fedavg.epochs) == (0.2, 7, 3, None)
    assert study.training_for("rotated-digits", {}).learning_rate == 0.5


def test_null_for_a_pattern_drops_what_fits_and_isnt_named_beside_it(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "methods: {ifca: {clusters: 2}, ifca-paper: {clusters: 3}, clove-paper: {clusters: 3}, '*/x': {a: 1}}\n"
        "seeds: {a: 1}\n"
    )

    def merged(text):
        (tmp_path / "b.yaml").write_text(text)
        return loading.read([tmp_path / "a.yaml", tmp_path / "b.yaml"])

    assert [*merged("methods: {'*-paper': null}")["methods"]] == ["ifca", "*/x"]
    for order in ("'*': null, ifca: {clusters: 5}", "ifca: {clusters: 5}, '*': null"):
        assert merged(f"methods: {{{order}}}")["methods"] == {"ifca": {"clusters": 5}}
    assert [*merged("methods: {'*/x': null}")["methods"]] == ["ifca", "ifca-paper", "clove-paper"]  # a key by itself
    assert merged("{'s*': null}").keys() == {"methods"}  # on top, too
    assert merged("seeds: {a: null}")["seeds"] == {"a": None}  # a value, no block
    with pytest.raises(
        UserError, match=r"b.yaml: '\*-papr: null' removes blocks of an earlier file, and none matches; did"
    ):
        merged("methods: {'*-papr': null}")
    with pytest.raises(UserError, match=r"none matches; allowed: \(none\)"):
        merged("seeds: {'a*': null}")


def test_files_are_merged_key_by_key(tmp_path):
    (tmp_path / "a.yaml").write_text("seeds: {runs: [0], data: 5}\nstudy: a")
    (tmp_path / "b.yaml").write_text("seeds: {runs: [1, 2]}")
    assert loading.read([tmp_path / "a.yaml", tmp_path / "b.yaml"]) == {
        "seeds": {"runs": [1, 2], "data": 5},
        "study": "a",
    }
    (tmp_path / "a.yaml").write_text("clusterings: {c: {clusterer: kmedoids, method: pam, max_iter: 5, clusters: 2}}")
    (tmp_path / "b.yaml").write_text("clusterings: {c: {method: alternate}}")
    merged = loading.read([tmp_path / "a.yaml", tmp_path / "b.yaml"])["clusterings"]["c"]
    assert merged == {"clusterer": "kmedoids", "method": "alternate", "max_iter": 5, "clusters": 2}
    (tmp_path / "b.yaml").write_text("clusterings: {c: {clusterer: spectral, clusters: 3}}")  # another part
    merged = loading.read([tmp_path / "a.yaml", tmp_path / "b.yaml"])["clusterings"]["c"]
    assert merged == {"clusterer": "spectral", "clusters": 3}
    (tmp_path / "b.yaml").write_text("seeds: {runs: [1], runs: [2]}")
    with pytest.raises(UserError, match="the key 'runs' is given twice"):
        loading.read([tmp_path / "b.yaml"])


@pytest.mark.parametrize(
    ("written", "read"), [("010", "8, because a 0 in front"), ("1:30", "90, because what"), ("1:30.5", "90.5, because")]
)
def test_a_number_in_an_odd_notation_is_refused(tmp_path, written, read):
    """YAML 1.1 reads 010 as octal and 1:30 in sixties: a run of 8 rounds where 10 were meant."""
    (tmp_path / "a.yaml").write_text(f"training: {{rounds: {written}}}")
    with pytest.raises(UserError, match=f"'{written}' would be read as {read}"):
        loading.read([tmp_path / "a.yaml"])
    (tmp_path / "a.yaml").write_text(f"title: '{written}'\ntraining: {{rounds: 0x10, learning_rate: 0.5}}")
    assert loading.read([tmp_path / "a.yaml"]) == {
        "title": written, "training": {"rounds": 16, "learning_rate": 0.5}
    }  # fmt: skip
    assert parse(write({"title": written})) == {"title": written}


def test_what_chooses_a_number_counts_only_where_one_is_chosen():
    def settings(**block):
        plan = Plan.from_settings(put(copy.deepcopy(DIGITS), "clusterings.lcfl", DIGITS["clusterings"]["lcfl"] | block))
        return plan.job("cluster", "rotated-digits", 0, "lcfl").settings

    assert settings() == settings(most=5, margin=1.1)
    chosen = settings(clusters="silhouette")
    assert {key: chosen[key] for key in ("clusters", "most", "margin")} == {
        "clusters": "silhouette",
        "most": 10,
        "margin": 1.0,
    }
    assert chosen != settings(clusters="silhouette", margin=1.1) != settings(clusters="silhouette", most=5)


def test_the_mirror_reaches_the_jobs(monkeypatch):
    monkeypatch.delenv("CLUSTERFL_MIRROR", raising=False)
    plain = Plan.from_settings(DIGITS)
    assert "CLUSTERFL_MIRROR" not in os.environ
    plan = Plan.from_settings(DIGITS | {"mirror": "/data"})
    assert os.environ["CLUSTERFL_MIRROR"] == "/data"
    for one, other in zip(plain.jobs(), plan.jobs(), strict=True):
        assert one.settings_digest == other.settings_digest  # where data come from reruns nothing


def test_a_mirror_with_a_password_is_no_setting_and_is_not_reported():
    """Settings are written beside the results and into reports, which people share."""
    for key in ("mirror", "mirrorr"):
        for address in ("https://me:hush@host/data", "https://host/data?sig=hush"):
            with pytest.raises(UserError, match=rf"{key}.*\*\*\*") as said:
                Plan.from_settings(DIGITS | {key: address})
            assert "hush" not in str(said.value)
            assert key != "mirror" or "environment variable CLUSTERFL_MIRROR" in str(said.value)


def test_the_study_of_collapsing_models_asks_for_four_of_them():
    study = Plan.from_settings(loading.read([ROOT / "workflow/studies/reduced/model-collapse.yaml"])).study
    assert [(block.model_extra or {}).get("clusters") for block in study.methods.values()] == [None, 4, 4, 4]
    assert [block.rebalance and block.rebalance.minimum for block in study.methods.values()] == [None, None, 10, 20]


@pytest.mark.parametrize("name, clusters", [("rotated-mnist", 4), ("label-skew", 5), ("concept-shift", 4)])
def test_reduced_studies_are_sound_and_ask_for_the_planted_number(name, clusters):
    """docs/three-federations.md is made with them."""
    folder = ROOT / "workflow/studies/reduced"
    study = Plan.from_settings(loading.read([folder / "common.yaml", folder / f"{name}.yaml"])).study
    asked = [block.clusters for block in study.clusterings.values()]
    given = [block.model_extra or {} for block in study.methods.values()]
    asked += [options["clusters"] for options in given if "clusters" in options]
    assert asked == [clusters] * 16


# What YAML can be made to do.

DOUBLING = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
MERGING = "".join(f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
HARMFUL = {
    "lists of lists": ("a0: &a0 [x]\n" + DOUBLING, "with its anchors written out it has more than 1,000,000 values"),
    "merged blocks": ("a0: &a0 {x: 1}\n" + MERGING, "a1: unknown key"),
    "a list inside itself": ("study: &a [*a]\n", "with its anchors written out"),
    "an object": ("study: !!python/object/apply:os.system ['touch harm']\n", "could not determine a constructor"),
    "a date that is none": ("study: 2001-99-99\n", "month must be in 1..12"),
    "brackets": ("study: " + "[" * 1000 + "]" * 1000 + "\n", "recursion"),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_harmful_yaml_is_refused_at_once(tmp_path, monkeypatch, name):
    text, says = HARMFUL[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"c.yaml.*(?s:.*){says}"):
        loading.load(loading.read([tmp_path / "c.yaml"]), "c.yaml")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "annotation", ["__import__('os').mkdir('harm')", "().__class__.__base__.__subclasses__()", "int if mkdir else 0",
                   "Annotated[int, Field(gt=[x for x in (open('harm', 'w'),)])]", "Field.__init__.__globals__['x']"],
)  # fmt: skip
def test_checking_settings_runs_no_code_of_a_module(tmp_path, monkeypatch, annotation):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(f"open('harm', 'w')\ndef f(folder, *, path: {annotation} = 3):\n    pass\n")
    evaluated, real = [], eval

    def watched(code, *where):
        evaluated.append(where[0].get("__name__"))
        return real(code, *where)

    monkeypatch.setattr("builtins.eval", watched)
    options = DATASETS.options("mine:f")
    assert not (tmp_path / "harm").exists() and set(evaluated) <= {"clusterfl.registry"}  # pydantic, of our own base
    assert options().path == 3


def test_an_option_on_the_command_line_is_the_one_that_was_given(capsys):
    for value in ("😀", "a\x7fb", "\u2028", "yes", "1e-3", '"', [1, "é"], {"a": None}, 3.5, None, True):
        assert option(f"key={json.dumps(value)}") == ("key", value)
    assert option("key=no") == ("key", False)
    for text in ("key=[", "key", "a b=1", "key=&a [*a"):
        with pytest.raises(argparse.ArgumentTypeError):
            option(text)


def test_errors_leave_the_terminal_as_it_is(tmp_path, monkeypatch, capsys):
    """A column's name that would clear the screen, as a file of somebody else's may have it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a\x1b[2J\x07,label\n1,0\n")
    assert main(["download", "table", "--option=path=t.csv", "--option=label=label", "--option=client=who"]) == 2
    said = capsys.readouterr().err
    assert r"a\x1b[2J\x07" in said and "\x1b" not in said and "\x07" not in said


def test_a_choice_among_equal_models_is_refused_before_a_run():
    study = put(tiny(), "methods.ifca.start", "identical")
    with pytest.raises(
        UserError, match=r"methods.ifca: start: identical makes all losses equal .* first_round: random"
    ):
        Plan.from_settings(study)
    Plan.from_settings(put(study, "methods.ifca.first_round", "random"))
    Plan.from_settings(put(study, "methods.ifca.ties", "first"))
    Plan.from_settings(put(study, "methods.ifca.start_noise", 0.05))
    with pytest.raises(UserError, match=r"methods.ifca.start_noise: 0.05 is for copies of one model"):
        Plan.from_settings(put(tiny(), "methods.ifca.start_noise", 0.05))


def test_settings_that_a_method_cannot_change_are_reported_with_its_place():
    study = put(tiny(), "methods.near", {"method": "fedprox", "proximal": 0.1})
    study["training"] |= {"average": "gradients", "steps": 1, "epochs": None, "batch_size": "full"}
    with pytest.raises(UserError, match=r"1 problem; .*\n  methods\.near\.proximal: .*has no effect with average"):
        Plan.from_settings(study)


def test_a_later_option_is_in_the_settings_only_where_it_is_given():
    """So that results from before it was there are still good; also what is null there stays out."""
    before = loading.load(tiny()).methods["ifca"].options()
    assert not {"ties", "start_noise"} & before.keys()
    assert loading.load(put(tiny(), "methods.ifca.ties", None)).methods["ifca"].options() == before
    given = put(put(tiny(), "methods.ifca.start", "identical"), "methods.ifca.ties", "first")
    assert loading.load(given).methods["ifca"].options() == before | {"start": "identical", "ties": "first"}
