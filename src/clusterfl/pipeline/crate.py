"""A finished study as a Workflow Run RO-Crate for research data archives: its files with their provenance.

Profiles: Process Run, Workflow Run and Workflow RO-Crate (w3id.org/ro/wfrun, RO-Crate 1.1). The run of the workflow is
one action, with the settings and the data as its objects and the report as its result; each job is another action. All
facts come from the manifests. Models aren't included, as a rerun makes them again; their digests are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import UserError
from ..progress import bar
from ..report.tables import processes
from ..storage.manifest import manifest_path, same_content, timing_path, verified
from ..storage.store import DATA, read_json
from .job import Job
from .jobs import Plan
from .project import source

if TYPE_CHECKING:
    from rocrate.model.entity import Entity
    from rocrate.rocrate import ROCrate

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
LICENCES = "https://spdx.org/licenses/"
SHA256 = "https://w3id.org/ro/terms/workflow-run#sha256"  # RO-Crate itself has no such term
BIOSCHEMAS = "https://bioschemas.org/profiles/"
PAGES = {  # of the packages whose versions are in manifests
    "kmedoids": "https://github.com/kno10/python-kmedoids",
    "numpy": "https://numpy.org/",
    "pandas": "https://pandas.pydata.org/",
    "pyarrow": "https://arrow.apache.org/docs/python/",
    "python": "https://www.python.org/",
    "safetensors": "https://github.com/huggingface/safetensors",
    "scikit-learn": "https://scikit-learn.org/",
    "scikit-learn-extra": "https://github.com/scikit-learn-contrib/scikit-learn-extra",
    "scipy": "https://scipy.org/",
    "torch": "https://pytorch.org/",
}
CLUSTERFL = "#clusterfl"
MODELS = (".safetensors", ".models")  # files that aren't copied
TYPES = {
    ".parquet": "application/vnd.apache.parquet",
    ".json": "application/json",
    ".csv": "text/csv",
    ".html": "text/html",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".yaml": "application/yaml",
    ".safetensors": "application/octet-stream",
}
README = """# {title}

- `results/{study}/report.html`: the report; `summary.parquet`, `tables/` and `figures/` in the same folder
- `results/{study}/settings.json`: all settings
- `results/{study}/FEDERATION/seedN/`: which client has which samples, and each method's scores, rounds and clusters
- `workflow/`: the workflow that made it
- `ro-crate-metadata.json`: what was made from what, when and with which versions; digests of data and models

To run it again, with clusterfl {version} installed:

    clusterfl run --config results/{study}/settings.json
"""
Described = Mapping[str, Any]


@dataclass(frozen=True)
class Author:
    """Who ran the study."""

    name: str
    orcid: str | None = None
    affiliation: str | None = None

    @property
    def entity(self) -> dict[str, Any]:
        """The person as an entity of a crate."""
        place = f"https://orcid.org/{self.orcid}" if self.orcid else "#author"
        return {"@id": place, "@type": "Person", "name": self.name}


def author(name: str, orcid: str | None = None, affiliation: str | None = None) -> Author:
    """Return the person who ran a study.

    Raises
    ------
    UserError
        If the ORCID isn't four groups of four digits, the last of which may be X, or its check character is wrong.
    """
    if orcid is not None and not re.fullmatch(r"([0-9]{4}-){3}[0-9]{3}[0-9X]", orcid):
        raise UserError(f"--orcid: found '{orcid}'; allowed: 0000-0000-0000-0000, without an address")
    if orcid is not None and orcid[-1] != _check_character(orcid[:-1].replace("-", "")):
        raise UserError(
            f"--orcid: found '{orcid}', in which the last character, which checks the others, doesn't fit them; "
            "correct the digit that is wrong"
        )
    return Author(name, orcid, affiliation)


def _check_character(digits: str) -> str:
    """Return the last character of an ORCID with these 15 digits, by ISO 7064, MOD 11-2."""
    total = 0
    for digit in digits:
        total = (total + int(digit)) * 2
    rest = (12 - total % 11) % 11
    return "X" if rest == 10 else str(rest)


def write(plan: Plan, folder: Path, licence: str, who: Author, more: Iterable[Described] = ()) -> Path:
    """Write a finished study's crate and return its metadata file.

    Parameters
    ----------
    plan
        The plan of the study; all its results must exist.
    folder
        The crate's folder; must not exist, or be empty.
    licence
        SPDX identifier of the licence under which the results are published, e.g. CC-BY-4.0.
    who
        Who ran the study.
    more
        Further entities, which the crate's root mentions: the papers' claims and the study's verdicts on them.

    Raises
    ------
    UserError
        If the folder isn't empty, the licence isn't an identifier, a result is missing, damaged, or of other settings
        or inputs than the current ones, or rocrate isn't installed.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]*", licence):
        raise UserError(f"--license: found '{licence}'; allowed: an SPDX identifier, e.g. CC-BY-4.0, CC0-1.0, MIT")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists; choose another folder, or move it away")
    jobs = list(plan.jobs())
    missing = [job for job in jobs if not manifest_path(job.first).exists()]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(jobs)} results of study '{plan.study.study}' are missing, e.g. "
            f"{missing[0].first}; complete it first: clusterfl run --config {plan.snapshot}"
        )
    for job in jobs:
        _check(job, plan.study.study)
    return _Crate(plan, licence, who).write(jobs, folder, more)


def _check(job: Job, study: str) -> None:
    """Raise an error if what a crate would say of a job isn't so; of data and models, which it lacks, by manifests."""
    copied = [path for path in job.outputs.values() if _is_copied(path)]
    try:
        manifest = read_json(manifest_path(job.first), f"rebuild it: {job.command}")
        for path in copied:
            verified(path, job.identity, job.settings_digest, job.command)
        for path in job.inputs.values():
            if not same_content(path, manifest.get("inputs", {}).get(str(path))):
                raise UserError(
                    f"{job.first} was made from another {path} than is there now; rebuild it: {job.command}"
                )
    except UserError as error:
        raise UserError(f"{error}; `clusterfl verify {study}` lists all that is wrong") from error


def _is_copied(path: Path) -> bool:
    """Return whether a result is in the crate, not only its digest."""
    return path.suffix not in MODELS and DATA not in path.parents


def _library() -> type[ROCrate]:
    try:
        from rocrate.rocrate import ROCrate
    except ModuleNotFoundError as error:
        raise UserError("a crate needs the package rocrate; install it: pip install 'clusterfl[crate]'") from error
    return ROCrate


class _Crate:
    """A crate that is being assembled."""

    def __init__(self, plan: Plan, licence: str, who: Author):
        self.plan, self.licence, self.who = plan, LICENCES + licence, who
        self.crate: ROCrate = _library()(version="1.1")
        self.crate.metadata.extra_terms["sha256"] = SHA256
        self.made: dict[str, Entity] = {}

    def write(self, jobs: list[Job], folder: Path, more: Iterable[Described]) -> Path:
        """Assemble the crate, write it into `folder`, and return its metadata file."""
        crate, study = self.crate, self.plan.study
        times = {job.first: _times(job) for job in jobs}
        crate.name = f"Results of study {study.study}: {study.title or 'clustered federated learning'}"
        crate.description = (
            f"Settings, results, report and provenance of a study of clustered federated learning, made by clusterfl "
            f"{__version__}: {len(study.federations)} federations, {len(study.methods)} methods, "
            f"{len(study.seeds.runs)} seeds. Models aren't included; a rerun makes them again."
        )
        crate.license = self.add(
            {"@id": self.licence, "@type": "CreativeWork", "name": self.licence.rpartition("/")[2]}
        )
        crate.root_dataset["datePublished"] = max(end for _, end in times.values()).date().isoformat()
        crate.root_dataset["conformsTo"] = [
            self.add({"@id": place, "@type": "CreativeWork", "name": name, "version": place.rpartition("/")[2]})
            for place, name in PROFILES.items()
        ]
        who = self.add(self.who.entity)
        if self.who.affiliation is not None:
            place = self.add({"@id": "#affiliation", "@type": "Organization", "name": self.who.affiliation})
            who["affiliation"] = crate.root_dataset["publisher"] = place
        crate.root_dataset["author"] = who
        settings = self.settings()
        workflow = self.workflow()
        self.readme()
        program = self.programs(jobs)
        with bar("jobs", len(jobs)) as progress:
            for number, job in enumerate(jobs, 1):
                self.action(number, job, program, who, times[job.first])
                progress(number, str(job))
        report = self.plan.job("report")
        self.run(workflow, settings, report, who, times)
        for entity in more:
            crate.root_dataset.append_to("mentions", self.add(dict(entity)))
        crate.write(folder)
        return folder / "ro-crate-metadata.json"

    def add(self, entity: dict[str, Any]) -> Entity:
        """Return an entity of the crate, added if it is new; references to entities are ``{"@id": ...}``."""
        place = entity["@id"]
        if place not in self.made:
            self.made[place] = self.crate.add_jsonld(entity)
        return self.made[place]

    def file(self, path: Path, entry: Described, **properties: Any) -> Entity:
        """Return the entity of a result's file, which is copied; models and data have only their digest."""
        name = path.as_posix()
        if name in self.made:
            return self.made[name]
        known = {"name": name, "sha256": entry["sha256"], "contentSize": str(entry["bytes"])} | properties
        known["encodingFormat"] = TYPES.get(path.suffix, "application/octet-stream")
        if not _is_copied(path):
            return self.add({"@id": f"#{name}", "@type": "CreativeWork"} | known)
        self.made[name] = self.crate.add_file(path, name, properties=known)
        return self.made[name]

    def readme(self) -> None:
        """Add a README with the contents, and how to run the study again."""
        page = self.crate.add_file(
            StringIO(README.format(title=self.crate.name, study=self.plan.study.study, version=__version__)),
            "README.md",
            properties={"name": "README.md", "encodingFormat": "text/markdown"},
        )
        page["about"] = self.crate.root_dataset

    def settings(self) -> Entity:
        """Add the study's settings, the workflow's input."""
        path = self.plan.snapshot
        if not path.exists():
            self.plan.save()
        words = {"name": "settings.json", "description": "All settings of the study", "encodingFormat": TYPES[".json"]}
        self.made[path.as_posix()] = self.crate.add_file(path, path.as_posix(), properties=words)
        return self.made[path.as_posix()]

    def workflow(self) -> Entity:
        """Add the workflow, its rules and its licence."""
        origin = source()
        licence = self.add({"@id": f"{LICENCES}MIT", "@type": "CreativeWork", "name": "MIT"})
        main = self.crate.add_workflow(
            origin / "workflow" / "Snakefile", "workflow/Snakefile", main=True, lang="snakemake",
            properties={"name": "clusterfl", "version": __version__, "encodingFormat": "text/plain"},
        )  # fmt: skip
        main["license"] = licence
        for path in sorted((origin / "workflow" / "rules").glob("*.smk")):
            words = {"name": path.name, "encodingFormat": "text/x-python", "description": "Rules of the workflow"}
            main.append_to("hasPart", self.crate.add_file(path, f"workflow/rules/{path.name}", properties=words))
        main["conformsTo"] = self.profile("ComputationalWorkflow", "1.0-RELEASE")
        main["input"] = self.parameter("settings", "The study's settings, given by --configfile", "application/json")
        main["output"] = self.parameter("report", "The study's report, one page", "text/html")
        return main

    def parameter(self, name: str, words: str, form: str) -> Entity:
        """Add an input or output of the workflow."""
        entity = {"@id": f"#{name}", "@type": "FormalParameter", "additionalType": "File", "name": name}
        found = self.add(entity | {"description": words, "encodingFormat": form, "valueRequired": "True"})
        found["conformsTo"] = self.profile("FormalParameter", "1.0-RELEASE")
        return found

    def profile(self, name: str, version: str) -> Entity:
        """Add a profile of Bioschemas."""
        place = f"{BIOSCHEMAS}{name}/{version}"
        return self.add({"@id": place, "@type": "CreativeWork", "name": f"Bioschemas {name}", "version": version})

    def programs(self, jobs: list[Job]) -> Entity:
        """Add the package with version and commit, and the packages that it requires with their versions."""
        manifest = read_json(manifest_path(jobs[-1].first), "run the study again")
        parts = [
            self.add(
                {"@id": PAGES[name], "@type": "SoftwareApplication", "name": name, "version": version}
                | {"url": PAGES[name]}
            )
            for name, version in manifest["versions"].items()
            if name != "clusterfl"
        ]
        entity = {"@id": CLUSTERFL, "@type": "SoftwareApplication", "name": "clusterfl", "version": __version__}
        entity["description"] = f"commit {manifest.get('commit') or 'not known'}, digest of code {manifest['code']}"
        found = self.add(entity)
        found["softwareRequirements"] = parts
        return found

    def action(self, number: int, job: Job, program: Entity, who: Entity, times: tuple[datetime, datetime]) -> None:
        """Add a job as an action: its inputs, results, times and processor."""
        path = manifest_path(job.first)
        manifest = read_json(path, "run the study again")
        machine = manifest.get("machine", {})
        results = [self.file(path.parent / name, entry) for name, entry in manifest["files"].items()]
        names = map(Path.as_posix, job.inputs.values())
        used = [self.made[key] for name in names for key in (name, f"#{name}") if key in self.made]
        action = self.add(
            {
                "@id": f"#job-{number}",
                "@type": "CreateAction",
                "name": str(job),
                "description": f"Settings {manifest['settings']}, code {manifest['code']}; processor: "
                f"{machine.get('processor', 'not known')}",
                "startTime": times[0].isoformat(),
                "endTime": times[1].isoformat(),
            }
        )
        for key, values in {"instrument": program, "agent": who, "object": used, "result": results}.items():
            if values:
                action[key] = values[0] if isinstance(values, list) and len(values) == 1 else values
        self.crate.root_dataset.append_to("mentions", action)

    def run(
        self, workflow: Entity, settings: Entity, report: Job, who: Entity,
        times: Mapping[Path, tuple[datetime, datetime]],
    ) -> None:  # fmt: skip
        """Add the run of the workflow."""
        page = self.made[report.outputs["page"].as_posix()]
        settings["exampleOfWork"], page["exampleOfWork"] = self.made["#settings"], self.made["#report"]
        action = self.add(
            {
                "@id": "#run",
                "@type": "CreateAction",
                "name": f"Run of study {self.plan.study.study}",
                "description": f"{len(times)} jobs, from the data to the report",
                "startTime": min(start for start, _ in times.values()).isoformat(),
                "endTime": max(end for _, end in times.values()).isoformat(),
            }
        )
        manifest = read_json(manifest_path(report.first), "run the study again")
        files = [self.made[(manifest_path(report.first).parent / name).as_posix()] for name in manifest["files"]]
        for key, value in {"instrument": workflow, "agent": who, "object": [settings, *self.data()]}.items():
            action[key] = value
        action["result"] = files
        self.crate.root_dataset.append_to("mentions", action)

    def data(self) -> Iterator[Entity]:
        """Yield the entities of the datasets used: files under data/, by digest."""
        for name, entity in self.made.items():
            if name.startswith(f"#{DATA.as_posix()}/"):
                yield entity


def _times(job: Job) -> tuple[datetime, datetime]:
    """Return when a job began and ended, in UTC.

    Raises
    ------
    UserError
        If its times are missing.
    """
    table = processes(job.first)
    if table.empty:
        again = f"make the result again: rm {shlex.quote(str(job.first))}, then {job.command}"
        raise UserError(f"{timing_path(job.first)} is missing, but a crate needs each job's times; {again}")
    start, last = (date.to_pydatetime().replace(tzinfo=UTC) for date in table["date"].iloc[[0, -1]])
    return start, last + timedelta(seconds=round(float(table["seconds"].iloc[-1])))
