"""Problems of settings that no single field can see: unknown parts and options, references, combinations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from ..clustering import CUTS
from ..clustering.distances import METRICS
from ..data import PARTITIONS
from ..data.catalogue import DatasetRow, rows
from ..data.transforms import ROTATIONS, parse
from ..engine.training import Training
from ..errors import UserError, choices
from ..methods import METHODS
from ..privacy.wrapper import wrap
from ..registry import find_file
from ..simulation.method import Known
from ..simulation.returned import check_class
from . import claims_checks
from .blocks import DIFFERING, Part, merge
from .federation import Dataset
from .sentences import lines, reference, short
from .study import Clustering, Distance, MethodBlock, Study, Warmup

# What a study's folder contains besides its federations, and results/ besides studies.
TAKEN = {
    "logs", "tables", "figures", "report.html", "summary.parquet", "study.json", "settings.json", "manifest.json",
    "timing.parquet", "plan.json",
}  # fmt: skip
MISSING = {"na", "nan", "null", "none"}
BESIDE = {
    "federations", "tables", "claims.html", "claims.parquet", "orderings.parquet", "discrepancies.parquet",
    "consequences.parquet", "central.parquet", "evidence.parquet", "benchmark.html", "benchmark.parquet",
    "benchmark-growth.parquet", "slurm-logs",
}  # fmt: skip


def problems(study: Study, sources: bool = True) -> Iterator[str]:
    """Yield the problems that no single field can detect: unknown parts and options, references, combinations.

    Without `sources` files and folders of the user's data needn't exist.
    """
    runs = study.seeds.runs
    for seed in sorted({s for s in runs if runs.count(s) > 1}):
        yield f"seeds.runs: seed {seed} is given {runs.count(seed)} times; each run needs a seed of its own"
    if study.baseline is not None:
        yield from reference("baseline", study.baseline, study.methods)
    yield from _name_problems(study)
    yield from claims_checks.problems(study)
    yield from _image_problems(study)
    yield from (found := list(_difference_problems(study)))
    if not found:
        # Trials and federations share what they don't change.
        yield from dict.fromkeys(line for part in _by_federation(study) for line in _block_problems(part, sources))


def _image_problems(study: Study) -> Iterator[str]:
    """Yield transforms for images of samples that the catalogue says are none; a user's own data are read to see it."""
    for name, federation in study.federations.items():
        row, block = rows().get(federation.dataset.part), federation.partition
        if row is None or len(row.shape) == 3:
            continue
        place = f"federations.{name}.partition"
        found = [(f"{place}.domains.{i}.transform", domain.transform) for i, domain in enumerate(block.domains)]
        found += [(f"{place}.drift.{i}.transform", event.transform or "none") for i, event in enumerate(block.drift)]
        if block.scheme == "rotated":
            angles = (block.model_extra or {}).get("angles", [90])
            turned = [angle for angle in angles if angle in ROTATIONS and angle] if isinstance(angles, list) else []
            found += [(f"{place}.scheme: rotated, angles", ROTATIONS[angle]) for angle in turned[:1]]
        for where, transform in found:
            if (step := parse(transform)).turns or step.blur:
                yield (
                    f"{where}: '{transform}' needs images [channels, height, width]; the samples of dataset "
                    f"'{federation.dataset.part}' have shape {row.shape}; choose another dataset, or other groups"
                )


def _block_problems(study: Study, sources: bool) -> Iterator[str]:
    yield from _sweep_problems(study)
    found = [line for place, block in _parts(study) for line in _option_problems(place, block, sources)]
    yield from (_at_change(study, _at_sweep(study, line)) for line in found)
    found = [*([] if found else _method_problems(study)), *_references(study), *_training_problems(study)]
    found += [*_drift_problems(study), *_score_problems(study)]
    yield from (_at_change(study, _at_sweep(study, line)) for line in found)


CHANGED: dict[str, type[BaseModel]] = dict(zip(DIFFERING, (Warmup, Clustering, MethodBlock), strict=True))


def _difference_problems(study: Study) -> Iterator[str]:
    """Yield what is wrong with a federation's overrides of blocks, as blocks."""
    for federation, block in study.federations.items():
        place = f"federations.{federation}"
        for kind in CHANGED:
            for name in getattr(block, kind):
                yield from reference(f"{place}.{kind}.{name}", name, getattr(study, kind))
        for name in block.only or ():
            yield from reference(f"{place}.only", name, study.methods)
        for name in block.methods:
            if block.only is not None and name in study.methods.keys() - block.only:
                yield f"{place}.methods.{name}: it doesn't run there; add it to {place}.only, or leave it out"
        for kind, form in CHANGED.items():
            for name, changes in getattr(block, kind).items():
                if name in (blocks := getattr(study, kind)):
                    try:
                        form(**merge(blocks[name].model_dump(exclude_unset=True), changes))
                    except ValidationError as error:
                        yield from lines(error, (place, kind, name), form)


def _by_federation(study: Study) -> Iterator[Study]:
    """Yield the study on each federation that overrides blocks, and on all others together."""
    own = [n for n, f in study.federations.items() if f.only is not None or any(getattr(f, kind) for kind in CHANGED)]
    rest = {name: block for name, block in study.federations.items() if name not in own}
    if rest:
        yield study.model_copy(update={"federations": rest})
    yield from map(study.on, own)


def _at_change(study: Study, line: str) -> str:
    """Return a problem's line with the place where the value is written: in a federation's block if that changes it."""
    for federation, block in study.federations.items():
        for kind in CHANGED:
            for name, changes in getattr(block, kind).items():
                if line.startswith(tuple(f"{kind}.{name}.{key}{end}" for key in changes for end in ":.")):
                    return f"federations.{federation}.{line}"
    return line


def _sweep_problems(study: Study) -> Iterator[str]:
    """Yield what is wrong with sweeps themselves; their values are checked like those of blocks."""
    for name, method in study.methods.items():
        place = f"methods.{name}.sweep"
        for key, values in method.sweep.items():
            if key in ("method", "model", "training", "sweep"):
                yield (
                    f"{place}.{key}: this key can't be swept; allowed: the method's own options, clustering, "
                    f"rebalance and privacy as whole blocks, and settings of training one by one, e.g. "
                    f"training.learning_rate"
                )
            if len(values) < 2:
                yield f"{place}.{key}: found {short(values)}; give at least 2 values, or set {key} in the block"
            # Quoted or not, a number is the same.
            for value in (v for i, v in enumerate(values) if v in values[:i] or str(v) in map(str, values[:i])):
                yield f"{place}.{key}: the value {short(value)} is given twice; give each once"
        for federation, block in study.federations.items() if method.sweep else ():
            # A user's own scheme may mark validation samples itself.
            if not block.partition.validation and block.partition.scheme in PARTITIONS.table:
                yield (
                    f"{place}: federation '{federation}' has no validation samples to choose by; set "
                    f"federations.{federation}.partition.validation, e.g. 0.1"
                )
        if method.sweep and study.score.evaluation == "newcomer":
            yield (
                f"{place}: no scores to choose by: newcomers are scored on test data alone; set score.evaluation to "
                "another evaluation"
            )
        for trial in method.grid():
            try:
                method.trial(trial)
            except ValidationError as error:
                yield from (_at_sweep(study, line) for line in lines(error, ("methods", name), MethodBlock))


def _methods(study: Study) -> Iterator[tuple[str, MethodBlock]]:
    """Yield every method with its block, a swept one with the block of each valid trial."""
    for name, method in study.methods.items():
        for values in method.grid() or [{}]:
            with contextlib.suppress(ValidationError):
                yield name, method.trial(values)


def _at_sweep(study: Study, line: str) -> str:
    """Return a problem's line with the place where the value is written, which for a swept one is the sweep."""
    for name, method in study.methods.items():
        for key in method.sweep:
            if line.startswith((f"methods.{name}.{key}:", f"methods.{name}.{key}.")):
                return line.replace(f"methods.{name}.", f"methods.{name}.sweep.", 1)
    return line


def _name_problems(study: Study) -> Iterator[str]:
    """Yield names that would collide with other files: names of blocks become names of files."""
    if study.study.lower() in BESIDE:
        yield f"study: the folder results already uses the name '{study.study}'; choose another name"
    for name in study.federations:
        if name.lower() in TAKEN:
            yield f"federations.{name}: the study's folder already uses the name '{name}'; choose another name"
    for kind in ("federations", "warmups", "distances", "clusterings", "methods"):
        seen: dict[str, str] = {}
        for name in getattr(study, kind):
            if (other := seen.setdefault(name.lower(), name)) != name:
                yield f"{kind}.{name}: some file systems don't distinguish it from '{other}'; choose another name"
            if name.lower() in MISSING:
                yield f"{kind}.{name}: programs that read tables take '{name}' as missing; choose another name"
    for kind in ("distances", "clusterings"):
        for name in getattr(study, kind):
            if name.rpartition(".")[2] in ("scores", "manifest", "timing"):
                yield f"{kind}.{name}: files with this ending belong to another result; choose another name"


def _parts(study: Study) -> Iterator[tuple[str, Part]]:
    yield "model", study.model
    for name, federation in study.federations.items():
        yield f"federations.{name}.dataset", federation.dataset
        yield f"federations.{name}.partition", federation.partition
        if federation.model:
            yield f"federations.{name}.model", federation.model
    for kind in ("distances", "clusterings"):
        for name, block in getattr(study, kind).items():
            yield f"{kind}.{name}", block
    for name, method in _methods(study):
        yield f"methods.{name}", method
        if method.model:
            yield f"methods.{name}.model", method.model


def check_names(kind: type[Part], known: type[BaseModel]) -> None:
    """Raise an error if one of the `known` options has the name of a key that all such blocks have."""
    taken = sorted(known.model_fields.keys() & kind.model_fields.keys())
    if taken:
        raise UserError(
            f"{known.__name__} has an option '{taken[0]}', which no study can set: each block of a {kind.key} has a "
            f"key of that name; give the option another name than {', '.join(sorted(kind.model_fields))}"
        )


def _option_problems(place: str, block: Part, sources: bool) -> Iterator[str]:
    try:
        if isinstance(block, MethodBlock):
            check_class(METHODS[block.method])
        check_names(type(block), block.registry.options(block.part))
        block.options()
        if sources and isinstance(block, Dataset):
            for name in block.files():
                find_file(block.options()[name])
    except UserError as error:
        yield f"{place}.{block.key}: {error}"
    except ValidationError as error:
        known = block.registry.options(block.part)
        extra = {f"{place}.{e['loc'][-1]}": e for e in error.errors() if e["type"] == "extra_forbidden"}
        for line in lines(error, (place,), known):
            where = line.partition(": ")[0]
            if where in extra:
                own = [k for k in type(block).model_fields if k != block.key and not _useless(block, k)]
                key, value = extra[where]["loc"][-1], extra[where]["input"]
                yield (
                    f"{where}: unknown key (value {short(value)}) for {block.key} '{block.part}'; "
                    f"{choices([*own, *known.model_fields], str(key))}"
                )
            else:
                yield line


def _references(study: Study) -> Iterator[str]:
    for name, distance in study.distances.items():
        yield from reference(f"distances.{name}.warmup", distance.warmup, study.warmups)
        if distance.shards > 1 and (distance.landmarks or not _of_losses(distance)):
            why = "landmarks make that cheap" if distance.landmarks else "this metric needs no losses"
            yield (
                f"distances.{name}.shards: {distance.shards} jobs would share the measuring of losses, but {why}; "
                "leave it out"
            )
        if distance.landmarks is not None and ":" in distance.metric:
            yield (
                f"distances.{name}.landmarks: '{distance.metric}' is a metric of your own, which compares all clients "
                f"with all; leave out landmarks, or use one of these metrics: {', '.join(METRICS)}"
            )
    for name, clustering in study.clusterings.items():
        yield from reference(f"clusterings.{name}.distance", clustering.distance, study.distances)
        yield from _too_many(study, f"clusterings.{name}.clusters", clustering.clusters)
        block = study.distances.get(clustering.distance)
        if block and block.landmarks and isinstance(clustering.clusters, int) and clustering.clusters > block.landmarks:
            yield (
                f"clusterings.{name}.clusters: {clustering.clusters} clusters for the {block.landmarks} landmarks of "
                f"distance '{clustering.distance}'; allowed: 1 to {block.landmarks}; or use more landmarks"
            )
        yield from _cut_problems(f"clusterings.{name}.clusters", clustering)
    for name, method in _methods(study):
        if method.clustering is not None and _one_shot(method) is False:
            known = ", ".join(one for one in METHODS if METHODS[one].one_shot)
            yield (
                f"methods.{name}.clustering: found '{method.clustering}', but method '{method.method}' makes its own "
                f"groups, if any; only for one-shot methods: {known}, or one of your own with one_shot = True; leave "
                "it out"
            )
        elif method.clustering is not None:
            yield from reference(f"methods.{name}.clustering", method.clustering, study.clusterings)
            if method.model is not None:
                yield (
                    f"methods.{name}.model: found '{method.model.part}', but the method continues from a warm-up and "
                    "has its network; leave it out, or set the federation's or the study's model"
                )
        elif _one_shot(method):
            yield f"methods.{name}.clustering: missing; {choices(study.clusterings)}"


def _cut_problems(place: str, clustering: Clustering) -> Iterator[str]:
    """Yield a problem if nothing sets the number of clusters, or two settings do."""
    own = clustering.model_extra or {}
    cuts = [key for key in CUTS if own.get(key) is not None]
    if clustering.clusters is None and not cuts and ":" not in clustering.clusterer:
        yield f"{place}: missing; give a number, silhouette or eigengap, or a distance to cut at: {' or '.join(CUTS)}"
    if clustering.clusters is not None and "threshold" in cuts:
        yield (
            f"{place}: found {clustering.clusters} and threshold {own['threshold']}, which determines the number of "
            "clusters by itself; leave out one of them"
        )


def _of_losses(distance: Distance) -> bool:
    """Return whether a distance is computed from losses; an unknown metric is reported elsewhere."""
    try:
        return METRICS.input(distance.metric) == "losses"
    except UserError:
        return True


def _one_shot(method: MethodBlock) -> bool | None:
    """Return whether a method continues a clustering; None for an unknown one, which is reported elsewhere."""
    try:
        return METHODS[method.method].one_shot
    except UserError:
        return None


def _useless(block: Part, key: str) -> bool:
    """Return whether a block's part has no use for a key."""
    return key == "clustering" and isinstance(block, MethodBlock) and _one_shot(block) is False


def _too_many(study: Study, place: str, clusters: Any) -> Iterator[str]:
    """Yield a line for each federation with fewer clients than the clusters that a block asks for."""
    for federation, block in study.federations.items():
        clients = (block.partition.model_extra or {}).get("clients")
        if isinstance(clients, int) and isinstance(clusters, int) and clusters > clients > 0:
            yield (
                f"{place}: {clusters} clusters for the {clients} clients of federation '{federation}'; "
                f"allowed: 1 to {clients}"
            )


def _method_problems(study: Study) -> Iterator[str]:
    """Yield what methods can't do with federations, as far as the settings show (`Method.check`)."""
    for name, block in _methods(study):
        method = METHODS.make(block.method, block.options())
        if block.rebalance is not None or block.privacy is not None:
            method = wrap(method, block.method, block.rebalance, block.privacy)
        for federation in study.federations:
            clients = (study.federations[federation].partition.model_extra or {}).get("clients")
            try:
                training = method.settings(study.training_for(federation, block.training))
            except ValidationError:  # reported below
                continue
            except UserError as error:  # the method's own settings aren't compatible with these
                yield f"methods.{name}.{error}"
                continue
            always = set(method.check(Known(training)))
            row = rows().get(study.federations[federation].dataset.part)
            known = Known(
                training,
                clients if isinstance(clients, int) else None,
                row.words if row else None,
                _headless(study, federation, block, row),
                numbers=_numbers(study, federation, row),
            )
            for problem in method.check(known):
                place = f"methods.{name}.{problem.option}" if problem.option else f"methods.{name}"
                where = "" if problem in always else f" (federation '{federation}')"
                yield f"{place}: {problem.sentence}{where}"


def _numbers(study: Study, federation: str, row: DatasetRow | None) -> bool:
    """Return whether a federation's targets are real numbers, as far as the settings show."""
    target = study.federations[federation].inputs.target
    return target == "input" or (row is not None and row.classes is None)


def _headless(study: Study, federation: str, method: MethodBlock, row: DatasetRow | None) -> str | None:
    """Return why a method's network has no features by class on a federation, as far as the settings show."""
    model = study.model_for(federation, method)
    if _numbers(study, federation, row):
        return "it predicts numbers, not classes"
    if model.part == "linear" or (model.part == "mlp" and not model.options()["hidden"]):
        return "its last layer is its only one, and features would be the samples themselves"
    return None


def _training_problems(study: Study) -> Iterator[str]:
    for name, block in study.warmups.items():
        if "rounds" in block.training:
            yield (
                f"warmups.{name}.training.rounds: found {short(block.training['rounds'])}, which has no effect: a "
                f"warm-up has the rounds {block.rounds} of its own; set warmups.{name}.rounds"
            )
    rows = [(f"methods.{n}.training", m.training) for n, m in _methods(study)]
    rows += [(f"warmups.{n}.training", w.training) for n, w in study.warmups.items()]
    rows += [(f"federations.{n}.training", {}) for n in study.federations]
    for federation in study.federations:
        for place, overrides in rows:
            try:
                settings = study.training_for(federation, overrides)
            except ValidationError as error:
                yield from lines(error, tuple(place.split(".")), Training)
                continue
            if study.score.evaluation not in settings.evaluations and place.startswith("methods."):
                yield (
                    f"score.evaluation: '{study.score.evaluation}' isn't among {place.removesuffix('.training')}'s "
                    f"evaluations {settings.evaluations}; add it to training.evaluations"
                )
    for name, method in _methods(study):
        warmup = _warmup_or_none(study, method)
        for federation in study.federations if warmup else ():
            try:
                rounds = study.training_for(federation, method.training).rounds
            except ValidationError:
                continue
            if rounds <= study.warmups[warmup].rounds:  # type: ignore[index]
                yield (
                    f"methods.{name}: {rounds} rounds, but the warm-up '{warmup}' alone has "
                    f"{study.warmups[warmup].rounds}; rounds include the warm-up, so give more"  # type: ignore[index]
                )


def _score_problems(study: Study) -> Iterator[str]:
    """Yield federations on which no method is scored in the round that the tables show."""
    at = study.score.at
    if not isinstance(at, int):
        return
    for federation in study.federations:
        with contextlib.suppress(ValidationError):  # reported above
            found = [study.training_for(federation, method.training) for _, method in _methods(study)]
            if found and not any(_scored(study, training, at) for training in found):
                rounds, every = max(one.rounds for one in found), min(one.evaluate_every for one in found)
                steps = "" if every == 1 else f", every {every}th and the last"
                yield (
                    f"score.at: found {at}, a round in which no method is scored (federation '{federation}'); allowed: "
                    f"rounds 0 to {rounds}{steps}, final or best; or more training.rounds"
                )


def _scored(study: Study, training: Training, round_: int) -> bool:
    """Return whether a round has scores; trained models are scored in every round, whatever `evaluate_every` is."""
    measured = study.score.evaluation in ("local", "stale") or round_ % training.evaluate_every == 0
    return round_ == training.rounds or (0 <= round_ < training.rounds and measured)


def _drift_problems(study: Study) -> Iterator[str]:
    """Yield drifts after the last round, or before a distance is measured."""
    for federation, block in study.federations.items():
        for number, event in enumerate(block.partition.drift):
            place = f"federations.{federation}.partition.drift.{number}.round: {event.round}"
            for name, warmup in study.warmups.items():
                used = any(_warmup_or_none(study, method) == name for _, method in _methods(study))
                if used and event.round <= warmup.rounds:
                    yield (
                        f"{place}, but the warm-up '{name}' has {warmup.rounds} rounds, after which distances are "
                        f"measured once; allowed: a drift from round {warmup.rounds + 1} on"
                    )
            for name, method in _methods(study):
                with contextlib.suppress(ValidationError):
                    rounds = study.training_for(federation, method.training).rounds
                    if event.round > rounds:
                        yield (
                            f"{place}, but method '{name}' has {rounds} rounds; allowed: 2 to {rounds}, or more "
                            "training.rounds"
                        )


def _warmup_or_none(study: Study, method: MethodBlock) -> str | None:
    try:
        name = study.warmup_of(method)
    except KeyError:
        return None
    return name if name in study.warmups else None
