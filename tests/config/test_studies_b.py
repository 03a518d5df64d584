"""The studies of CLoVE's and FedGWC's tables: sound, as the papers have it, reduced only where they say."""

from __future__ import annotations

import csv
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from typing import Any

import pytest
from conftest import ROOT

from clusterfl.claims.ours import problems
from clusterfl.models import MODELS
from clusterfl.pipeline.jobs import Plan

FOLDER = ROOT / "workflow/studies"
NAMES = ("clove", "fedgwc")


@lru_cache
def plan(name: str, lite: bool = False) -> Plan:
    return Plan.from_files([FOLDER / f"{name}.yaml", *([FOLDER / f"{name}.lite.yaml"] if lite else [])])


def settings(name: str, federation: str, method: str, lite: bool = False) -> dict[str, Any]:
    own = plan(name, lite)
    return own.job("federate", federation, own.study.seeds.runs[0], method).settings


def partition(name: str, federation: str, lite: bool = False) -> dict[str, Any]:
    own = plan(name, lite)
    return own.job("partition", federation, own.study.seeds.runs[0]).settings


def pairs(name: str, lite: bool = False) -> set[tuple[str, str]]:
    return {(f, m) for f in plan(name, lite).study.federations for m in plan(name, lite).on(f).methods}


def differences(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


@pytest.mark.parametrize("lite", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_the_claims_is_run_or_said_to_be_absent(name, lite):
    claims = plan(name, lite).study.claims
    assert problems(plan(name, lite).study) == []
    run = pairs(name, lite)
    for row in csv.DictReader((files("clusterfl.claims") / "data" / f"{name}.csv").read_text().splitlines()):
        cell = f"{row['dataset']}/{row['setting']}"
        where = f"{cell}/{row['method']}"
        absent = any(fnmatchcase(where, glob) for glob in claims.absent)
        own = claims.cells.get(cell)
        found = own and (own.federation, claims.names.get(row["method"], row["method"]) + own.suffix) in run
        assert bool(found) != absent, where  # one of both


@pytest.mark.parametrize("lite", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_discrepancies_and_second_profiles_name_is_run(name, lite):
    claims, run = plan(name, lite).study.claims, pairs(name, lite)
    for block in claims.discrepancies.values():
        assert {(side.federation, side.method) for side in (block.released, block.paper)} <= run
    second = claims.others["paper"]
    cells = [cell.federation for cell in second.cells.values()]
    there = {method: [place for place in cells if (place, method) in run] for method in second.names.values()}
    left_out = {f"{method}-paper" for method in PFLLIB} if (name, lite) == ("clove", True) else set()
    assert {method for method, places in there.items() if not places} == left_out
    assert lite or {place for places in there.values() for place in places} == set(cells)


SMALLER = {  # of training, what a reduced study may have otherwise
    "clove": {"rounds", "batch_size", "learning_rate", "epochs", "evaluate_every"},
    "fedgwc": {"rounds", "batch_size", "learning_rate", "steps", "evaluate_every", "participation"},
}
OPTIONS = {  # of a method's own options
    "cfl": {"eps_mean", "first_split"},
    "pacfl": {"threshold"},
    "fedgwc": {"alpha", "epsilon"},
}


PFLLIB = ("per-fedavg", "fedproto", "fedala", "fedpac")
SHIFTS = ("ls1", "ls2", "ls3", "ls4", "feature", "concept")
GREY = [f"{data}-{shift}" for data in ("mnist", "fashion") for shift in SHIFTS]


@pytest.mark.parametrize("federation", GREY)
def test_pfllibs_rows_have_its_network_and_by_the_text_cloves_and_nothing_else_differs(federation):
    """FedAvgCNN of its trainmodel/models.py: 32 and 64 filters of 5 x 5, 512 units, which are 582,026 parameters."""
    for method in PFLLIB:
        own, text = settings("clove", federation, method), settings("clove", federation, f"{method}-paper")
        assert {key for key in own if own[key] != text[key]} == {"model"}
        assert [_parameters(job, (1, 28, 28)) for job in (own, text)] == [582_026, 5_142]


def test_pfllibs_rows_have_its_network_on_colour_images_and_the_study_s_on_words():
    assert _parameters(settings("clove", "cifar10-ls1", "fedala"), (3, 32, 32)) == 878_538
    for federation in ("amazon", "agnews"):
        networks = [settings("clove", federation, method)["model"] for method in (*PFLLIB, "fedavg")]
        assert networks == 5 * networks[:1]


@pytest.mark.parametrize("federation", GREY)
def test_flexcfls_rows_have_its_networks_and_its_rates(federation):
    """flearn/model/mnist/mlp.py and fmnist/cnn.py; `TrainConfig` of utils/trainer_utils.py."""
    job, mnist = settings("clove", federation, "flexcfl"), federation.startswith("mnist")
    assert _parameters(job, (1, 28, 28)) == (101_770 if mnist else 3_274_634)
    assert job["training"]["learning_rate"] == (0.03 if mnist else 0.005)
    assert (job["training"]["epochs"], job["training"]["batch_size"]) == (10, 10)


def _parameters(job, shape):
    return sum(p.numel() for p in MODELS[job["model"]["model"]](shape, 10, **job["model"]["options"]).parameters())


@pytest.mark.parametrize("name", NAMES)
def test_the_reduced_study_differs_in_what_its_table_says(name):
    paper, lite = plan(name).study, plan(name, True).study
    assert (lite.study, lite.engine.device) == (f"{name}-lite", "cpu")
    assert lite.seeds.runs == [0, 1, 2] and lite.score == paper.score
    assert pairs(name, True) < pairs(name)
    left_out = {"clove": {"femnist"}, "fedgwc": {"femnist", "landmarks", "inaturalist"}}[name]
    assert set(paper.federations) - set(lite.federations) == left_out
    for federation, method in pairs(name, True):
        own, job = settings(name, federation, method), settings(name, federation, method, True)
        assert own["method"] == job["method"]
        assert differences(own["options"], job["options"]) <= OPTIONS.get(own["method"], set()), (federation, method)
        assert differences(own["training"], job["training"]) <= SMALLER[name], (federation, method)
    for federation in lite.federations:
        own, job = partition(name, federation), partition(name, federation, True)
        stand_in = federation in ("amazon", "agnews")
        changed = {"options", "limit", *({"domains"} if name == "fedgwc" else ())}
        assert stand_in or differences(own, job) - {"seed"} <= changed, federation
        sizes = {"samples", "clients_per_cluster", "clients"}
        assert stand_in or differences(own["options"], job["options"]) <= sizes, federation


def test_groups_keep_their_shares_and_transforms_in_the_reduced_fedgwc():
    for federation in plan("fedgwc", True).study.federations:
        own, job = (partition("fedgwc", federation, lite) for lite in (False, True))
        assert [d["weight"] for d in own["domains"]] == [d["weight"] for d in job["domains"]]
        kinds = [[d["transform"].partition("(")[0] for d in p["domains"]] for p in (own, job)]
        assert kinds[0] == kinds[1]
        if isinstance(own["options"]["clients"], list):
            assert [5 * n for n in job["options"]["clients"]] == own["options"]["clients"]
        else:
            assert (own["options"]["clients"], job["options"]["clients"]) == (100, 20)


# CLoVE, SPEC 4.2, 4.3, 4.5: clients a cluster, samples, K
CLOVE = {
    "mnist-ls1": (5, 500, 5), "mnist-ls2": (5, 500, 5), "mnist-ls3": (5, 500, 5), "mnist-ls4": (5, 500, 10),
    "mnist-feature": (10, 500, 4), "mnist-concept": (5, 1000, 4),
    "cifar10-ls1": (3, 500, 5), "cifar10-ls2": (3, 500, 5), "cifar10-ls3": (5, 500, 5), "cifar10-ls4": (3, 500, 10),
    "cifar10-feature": (5, 500, 4), "cifar10-concept": (3, 1000, 4),
    "mnist-scaling-50": (10, 200, 5), "mnist-scaling-1000": (200, 100, 5), "cifar10-scaling-500": (100, 100, 5),
    "mnist-single": (5, 1000, 10), "cifar10-single": (5, 500, 10), "mnist-single-1000": (100, 100, 10),
    "cifar10-ablation": (5, 500, 5), "mnist-participation": (25, 100, 5), "agnews": (5, 100, 6),
}  # fmt: skip


@pytest.mark.parametrize("federation", CLOVE)
def test_clove_has_the_released_hyperparameters(federation):
    clients, samples, k = CLOVE[federation]
    options = partition("clove", federation)["options"]
    assert (options["clients_per_cluster"], options["samples"]) == (clients, samples)
    if "clusters_seed" in options and federation != "mnist-feature":  # rotations need no division
        assert options["clusters_seed"] == 1
    job = settings("clove", federation, "clove")
    training = job["training"]
    assert (training["optimizer"], training["batch_size"], training["epochs"], training["rounds"]) == (
        "adam",
        100,
        1,
        100,
    )
    assert (training["participation"], training["schedule"], training["weights"]) == (1.0, "constant", "samples")
    gray = federation.startswith("mnist") and "single" not in federation
    assert training["learning_rate"] == (0.01 if gray else 0.001)
    first = "losses" if "single" in federation else "random"
    assert (job["options"]["clusters"], job["options"]["start"], job["options"]["first_round"]) == (k, "random", first)
    assert (job["options"]["clusterer"], job["options"]["matching"]) == ("kmeans", "assignment")
    assert job["options"]["stable_rounds"] == 0
    if "ifca" in plan("clove").on(federation).methods:
        ifca = settings("clove", federation, "ifca")
        assert (ifca["options"]["clusters"], ifca["options"]["first_round"]) == (k, first)
        assert ifca["training"] == training


def test_cloves_networks_and_inputs():
    models = {f: settings("clove", f, "clove")["model"] for f in ("mnist-ls1", "cifar10-ls1", "mnist-single")}
    models |= {f: settings("clove", f, "clove")["model"] for f in ("cifar10-single", "amazon", "agnews", "linear-0.1")}
    assert {f: m["model"] for f, m in models.items()} == {
        "mnist-ls1": "clove-cnn", "cifar10-ls1": "clove-cifar-cnn", "mnist-single": "clove-autoencoder",
        "cifar10-single": "clove-cifar-autoencoder", "amazon": "mlp", "agnews": "textcnn", "linear-0.1": "linear",
    }  # fmt: skip
    assert models["amazon"]["options"]["hidden"] == [1000, 500, 100]
    text = models["agnews"]["options"]
    assert (text["units"], text["words"], text["size"], text["filters"]) == (6, 32000, 100, 100)
    assert (text["widths"], text["dropout"]) == ([3, 4, 5], 0.8)
    assert models["linear-0.1"]["options"]["bias"] is False
    inputs = {f: settings("clove", f, "clove")["inputs"] for f in models}
    assert (inputs["cifar10-ls1"]["scale"], inputs["cifar10-single"]["scale"]) == ("raw", "unit")
    assert {f for f, i in inputs.items() if i["target"] == "input"} == {"mnist-single", "cifar10-single"}


def test_fesem_has_the_rates_of_flexcfls_trainer():
    """By the name of the data: .03 for mnist*, .005 for fmnist, .003 otherwise."""
    rates = {"mnist": 0.03, "fashion": 0.005}
    for federation, method in sorted(pairs("clove")):
        if method in ("fesem", "flexcfl"):
            training = settings("clove", federation, method)["training"]
            assert training["learning_rate"] == rates.get(federation.partition("-")[0], 0.003), federation


def test_pacfl_flexcfl_and_kfed_have_their_released_settings():
    """SPEC 6.5 to 6.7; as many groups as are planted."""
    for federation, method in sorted(pairs("clove")):
        job = settings("clove", federation, method)
        options, training = job["options"], job["training"]
        local = [training[key] for key in ("optimizer", "batch_size", "epochs", "weights")]
        if method == "pacfl":
            assert (options["threshold"], options["vectors"], options["angle"]) == (4.9, 3, "pairs")
            assert (options["linkage"], options["clusters"]) == ("weighted", None)
            assert (training["learning_rate"], training["momentum"], *local) == (0.01, 0.5, "sgd", 10, 10, "samples")
        if method == "flexcfl":
            assert (options["sampled"], options["pretraining"], options["starts"]) == (20, 50, 10)
            assert local == ["sgd", 10, 10, "samples"]
            assert options["clusters"] == settings("clove", federation, "clove")["options"]["clusters"]
        if method.startswith("k-fed"):
            assert federation.startswith("linear-") and (options["clusters"], options["local_clusters"]) == (5, 5)
            assert options["local"] == ("plain" if method == "k-fed" else "awasthi-sheffet")


def test_cloves_smallest_clusters_on_cifar10_are_the_released_ones():
    """MNIST's, which the released code keeps. Label skew 1 gives each class to one cluster: no number matters."""
    least = {"cifar10-ls2": [5100, 510], "cifar10-ls3": [6000, 750], "cifar10-ablation": [6000, 750]}
    for federation, numbers in least.items():
        assert partition("clove", federation)["options"]["minimum"] == numbers
    assert partition("clove", "cifar10-ls1")["options"]["minimum"] is None


@pytest.mark.parametrize("name", ["lcfl", "clove", "fedgwc", "rr_cluster"])
def test_reduced_studies_see_whole_pixels(name):
    """Networks without batch normalisation end at chance on images divided by 255 twice, or not at all."""
    reduced = plan(name, lite=True)
    found = {job.federation for job in reduced.jobs() if job.stage == "federate" and "cifar" in str(job.federation)}
    assert found
    for federation in found:
        inputs = reduced.study.federations[federation].inputs
        assert inputs.scale == "unit" and not inputs.squashed, federation


@pytest.mark.parametrize("federation", ["rotcifar10", "rotcifar10-static"])
def test_lcfls_cifar10_is_divided_by_255_once(federation):
    """As in its code until 2024-07-31, with which the printed curves were made (images of 2024-04-19)."""
    inputs = plan("lcfl").study.federations[federation].inputs
    assert (inputs.scale, inputs.squashed) == ("unit", [])


def test_cloves_other_experiments():
    study = plan("clove").study
    assert study.seeds.runs == [1, 2, 3]
    assert (study.score.evaluation, study.score.average, study.score.at, study.score.ddof) == (
        "aggregated", "clients", "final", 0,
    )  # fmt: skip
    for delta in ("0.0003", "0.001", "0.01", "0.02", "0.1", "1.0"):
        training = settings("clove", f"linear-{delta}", "clove")["training"]
        assert (training["rounds"], training["epochs"]) == (5, 25)
        assert study.federations[f"linear-{delta}"].dataset.options()["delta"] == float(delta)
        assert study.federations[f"linear-{delta}"].dataset.options()["seed"] == "run"  # data of its own for each run
    for share in ("0.9", "0.75", "0.5", "0.25", "0.1"):
        job = settings("clove", "mnist-participation", f"clove-p{share}")
        assert job["training"]["participation"] == float(share)
    femnist = settings("clove", "femnist", "clove-unknown-k")
    assert femnist["training"]["epochs"] == 25
    assert {k: femnist["options"][k] for k in ("clusters", "choose_k", "margin")} == {
        "clusters": 15, "choose_k": True, "margin": 1.1,
    }  # fmt: skip
    # Identical models with a first round by losses have no groups to find: both methods refuse it.
    starts = {("identical", "random"), ("random", "random"), ("random", "losses")}
    for method in ("clove", "ifca"):
        options = [settings("clove", "mnist-init", m)["options"] for m in study.methods if ("mnist-init", m) in
                   pairs("clove") and m.startswith(method)]  # fmt: skip
        assert {(o["start"], o["first_round"]) for o in options} == starts
        assert {o["clusters"] for o in options} == {10}
    assert partition("clove", "mnist-init")["options"]["samples"] == 500
    assert partition("clove", "mnist-single-250")["options"]["samples"] == 250


@pytest.mark.parametrize("lite", [False, True])
def test_cloves_discrepancies_and_ablations_are_one_difference_each(lite):
    own = settings("clove", "cifar10-ablation", "clove", lite)
    for method, change in (
        ("clove-no-matching", {"matching": "order"}),
        ("clove-agglomerative", {"clusterer": "ward"}),
        ("clove-sqrt", {"losses": "root"}),
    ):
        assert settings("clove", "cifar10-ablation", method, lite) == own | {"options": own["options"] | change}
    stop = settings("clove", "cifar10-ls1", "clove-stop", lite)
    without = settings("clove", "cifar10-ls1", "clove", lite)
    assert stop == without | {"options": without["options"] | {"stable_rounds": 3}}
    ls1 = {m: settings("clove", "mnist-ls1", m, lite) for m in plan("clove", lite).on("mnist-ls1").methods}
    for method, options in (("cfl", {"upstream_index_bug": False}), ("clove-unknown-k", {"margin": 1.0})):
        assert ls1[f"{method}-paper"] == ls1[method] | {"options": ls1[method]["options"] | options}
    batch = 13 if lite else 64
    for method in ("fedavg", "local", "ifca", "clove"):
        training = ls1[method]["training"] | {"learning_rate": 0.001, "batch_size": batch}
        assert ls1[f"{method}-paper"] == ls1[method] | {"training": training}
    assert settings("clove", "mnist-ls1-dirichlet", "clove", lite) == ls1["clove"]
    split = {f: partition("clove", f, lite) for f in ("mnist-ls1", "mnist-ls1-dirichlet")}
    assert split["mnist-ls1-dirichlet"]["options"] == split["mnist-ls1"]["options"] | {"profile": "paper"}
    turned, permuted = (partition("clove", f"cifar10-feature{s}", lite)["options"] for s in ("-rotated", ""))
    assert differences(turned, permuted) == {"profile", "clusters_seed"}
    assert settings("clove", "cifar10-feature", "clove", lite) == settings(
        "clove", "cifar10-feature-rotated", "clove", lite
    )


def test_a_round_has_as_many_steps_in_the_reduced_clove():
    """So that rounds until clusters are found are of one kind, where tables print them for images: Tables 5, 10, 13."""
    for federation, method in pairs("clove", True):
        kind = federation.partition("-")[2].partition("-")[0]
        if kind not in ("ls1", "ls2", "ls3", "ls4", "feature", "concept", "ablation") or method in (
            "cfl",
            "cfl-paper",
            "fesem",
            "flexcfl",
            "pacfl",
            "per-fedavg",
            "fedala",
            "fedpac",
            "fedproto",
        ):
            continue
        steps = set()
        for lite in (False, True):
            batch = settings("clove", federation, method, lite)["training"]["batch_size"]
            steps.add(-(-partition("clove", federation, lite)["options"]["samples"] // batch))
        assert len(steps) == 1, (federation, method)


ROUNDS = {"cifar100": 20000, "cifar10": 10000, "femnist": 3000, "landmarks": 1000, "inaturalist": 2000}


@pytest.mark.parametrize("federation", sorted(plan("fedgwc").study.federations))
def test_fedgwc_has_the_papers_hyperparameters(federation):
    """SPEC 5.3 and App. F."""
    job = settings("fedgwc", federation, "fedgwc")
    training, options = job["training"], job["options"]
    dataset = federation.partition("-")[0]
    large = dataset in ("landmarks", "inaturalist")
    assert (training["rounds"], training["learning_rate"]) == (ROUNDS[dataset], 0.1 if large else 0.01)
    steps = {"femnist": 8, "inaturalist": 5}.get(dataset, 7)
    assert (training["steps"], training["batch_size"], training["weight_decay"]) == (steps, 64, 4e-4)
    assert (training["optimizer"], training["momentum"], training["schedule"]) == ("sgd", 0, "constant")
    clients = {"femnist": 400, "landmarks": 823, "inaturalist": 2714}.get(dataset, 100)
    assert round(training["participation"] * clients) == (40 if dataset == "femnist" else 10)
    assert (options["profile"], options["beta"]) == ("released", 4 if dataset == "femnist" else 0.5)
    assert options["epsilon"] == {"landmarks": 1e-4, "inaturalist": 1e-2}.get(dataset, 1e-5)
    assert options["alpha"] == (0.1 if large else None)
    network = {"femnist": "lenet5", "landmarks": "mobilenet-v2", "inaturalist": "mobilenet-v2"}
    assert job["model"]["model"] == network.get(dataset, "fedgwc-cnn")


def test_fedgwcs_sweeps_variants_and_groups():
    for federation, best in (("cifar100-alpha0.5", 0.5), ("femnist", 4)):
        methods = plan("fedgwc").on(federation).methods
        betas = {m: settings("fedgwc", federation, m)["options"]["beta"] for m in methods if "-beta-" in m}
        assert all(name.endswith(f"-{float(beta)}") for name, beta in betas.items())
        assert {*betas.values(), best} == {0.1, 0.5, 1, 2, 4} and best not in betas.values()
        for method in ("ifca", "fesem"):
            tried = {settings("fedgwc", federation, m)["options"]["clusters"] for m in methods if m.startswith(method)}
            assert tried == {2, 3, 4, 5}
        own = settings("fedgwc", federation, "fedgwc")
        for name, key, value in (("fedavgm", "server_momentum", 0.9), ("fedprox", "proximal", 0.01)):
            with_it = settings("fedgwc", federation, f"fedgwc-{name}")
            assert with_it == own | {"training": own["training"] | {key: value}}
    alphas = {f: partition("fedgwc", f)["options"].get("alphas") for f in plan("fedgwc").study.federations}
    assert alphas["cifar100-mixed-10-90-0"] == [1000, 0.5, 0] and alphas["cifar100-mixed-40-30-30"] == [1000, 0.05, 0]
    assert all(alphas[f"cifar10-mixed-{n}"] == [100, 0.5, 0] for n in ("10-0-90", "10-90-0", "40-30-30"))  # App. H


def test_noise_is_fresh_where_a_domain_has_some():
    for lite in (False, True):
        for federation in plan("fedgwc", lite).study.federations:
            noisy = any(d["transform"].startswith("noise") for d in partition("fedgwc", federation, lite)["domains"])
            inputs = settings("fedgwc", federation, "fedgwc", lite)["inputs"]
            assert inputs.get("noise") == ("fresh" if noisy else None)
            assert noisy == (federation.partition("domains-")[2] in ("50-50-0", "40-30-30"))


def test_the_small_fedgwc_is_the_unreduced_protocol_but_for_network_and_rounds():
    paper = plan("fedgwc")
    small = Plan.from_files([FOLDER / "fedgwc.yaml", FOLDER / "fedgwc.small.yaml"])
    study = small.study
    assert problems(study) == []
    assert (study.study, study.claims.scale, study.seeds.runs) == ("fedgwc-small", "lite", [0])
    assert study.score == paper.study.score
    domains = {
        f"{data}-domains-{part}" for data in ("cifar10", "cifar100") for part in ("50-50-0", "50-0-50", "40-30-30")
    }
    assert set(study.federations) == domains
    assert {cell.federation for cell in study.claims.cells.values()} == domains
    for federation in domains:
        assert set(small.on(federation).methods) == {"ifca", "fesem", "fedgwc"}
        own, job = (p.job("partition", federation, 0).settings for p in (paper, small))
        assert own == job
        for method in small.on(federation).methods:
            own, job = (p.job("federate", federation, 0, method).settings for p in (paper, small))
            assert differences(own, job) == {"model", "training", "device"}
            assert differences(own["training"], job["training"]) == {"rounds", "evaluate_every"}
            assert job["training"]["rounds"] == 2500
            assert (job["model"]["model"], job["model"]["options"]["hidden"]) == ("mlp", [64])


@pytest.mark.parametrize("lite", [False, True])
def test_fedgwcs_discrepancies_are_one_difference_each(lite):
    own = settings("fedgwc", "cifar10-domains-50-50-0", "fedgwc", lite)
    variant = {
        m: settings("fedgwc", "cifar10-domains-50-50-0", f"fedgwc-{m}", lite)
        for m in ("unscaled", "rows", "unnormalised", "paper", "paper-loose")
    }
    for name, change in (("unscaled", {"scaled": False}), ("rows", {"transposed": False})):
        assert variant[name] == own | {"options": own["options"] | change}
    # Lengths of rewards that aren't normalised need another epsilon
    assert differences(variant["unnormalised"]["options"], own["options"]) == {"normalised", "epsilon"}
    assert differences(variant["paper-loose"]["options"], variant["paper"]["options"]) == {"epsilon"}
    assert variant["paper"]["options"]["profile"] == "paper"
    assert differences(variant["paper"]["options"], own["options"]) == ({"profile", "alpha"} if lite else {"profile"})
    assert all(v["training"] == own["training"] for v in variant.values())
