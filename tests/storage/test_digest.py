"""Digests of code: from real imports, blind to comments, docstrings and rows of tables."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterfl import registry
from clusterfl.errors import UserError
from clusterfl.storage import digest


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    copy = tmp_path_factory.mktemp("source") / "clusterfl"
    shutil.copytree(registry.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def package(copied, monkeypatch):
    """A copy of the package's source, whose digests can be asked for without importing it."""
    for module in (registry, digest):
        monkeypatch.setattr(module, "PACKAGE", copied)
    return copied


@contextlib.contextmanager
def edited(path: Path, old: str, new: str) -> Iterator[None]:
    """Replace a text in a file for a while."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    yield
    path.write_text(text)


STAGES = ["download", "partition", "warmup", "distance", "cluster", "federate"]


def digests():
    return {stage: digest.of_code([f"clusterfl.pipeline.stages.{stage}"]) for stage in STAGES}


@pytest.mark.parametrize(
    "file, old, new, stages",
    [
        ("engine/engine.py", "import numpy as np", "# a comment\nimport numpy as np", []),
        ("engine/engine.py", '"""The engine:', '"""Another docstring:', []),
        ("methods/__init__.py", '"fedavg":', '"mine": "my:own",\n        "fedavg":', []),
        ("methods/ifca.py", "DRAWS = 1000", "DRAWS = 2000", []),  # no stage imports a method: the job names it
        ("clustering/distances.py", "abs(here - own)", "abs(here + own)", ["distance", "cluster"]),
        ("clustering/__init__.py", "rank[inverse]", "rank", ["cluster"]),
        ("engine/loop.py", "module.train()", "module.eval()", ["warmup", "distance", "federate"]),
        ("simulation/ledger.py", "forwards = 0", "forwards = 1", ["warmup", "distance", "federate"]),
        ("data/prepared.py", "quarter, (-2, -1)", "1, (-2, -1)", ["warmup", "distance", "federate"]),
        # Formats have numbers of their own, which manifests are compared by.
        ("storage/manifest.py", "SCHEMA_VERSION = 1", "SCHEMA_VERSION = 2", []),
        ("cli/common.py", "return 2", "return 3", []),
        ("config/loading.py", "later files override", "last files override", []),
        ("report/__init__.py", '"""The report', '"""A report', []),
    ],
)
def test_what_an_edit_touches(package, file, old, new, stages):
    before = digests()
    with edited(package / file, old, new):
        after = digests()
    assert [stage for stage in STAGES if after[stage] != before[stage]] == stages


def test_a_users_module_and_what_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text("import beside\nimport json\n\ndef f():\n    return beside.x\n")
    (tmp_path / "beside.py").write_text("x = 1\n")
    before = digest.of_code(["mine"])
    (tmp_path / "beside.py").write_text("x = 2\n")
    assert digest.of_code(["mine"]) != before
    with pytest.raises(UserError, match="module 'absent' isn't found"):
        digest.of_code(["absent"])
    (tmp_path / "mine.py").write_text("def f(:\n")
    with pytest.raises(UserError, match=r"mine.py, line 1: "):
        digest.of_code(["mine"])


@pytest.mark.parametrize(
    "before, after, counts",
    [
        ("np.einsum('i j -> j', x)", "np.einsum('i j -> i', x)", True),
        ("streams.generator(0, 'first round')", "streams.generator(0, 'a first round')", True),
        ("text == 'a word'", "text == 'another word'", True),
        ("{'a key': 1}", "{'another key': 1}", True),
        ("table['a key']", "table['another key']", True),
        ("x + 1", "x + 2", True),
        ("'sum'", "'mean'", True),
        ("UserError('sum')", "UserError(f'{x}')", False),
        ("'it is so'", "'it is otherwise'", False),
        ("f'{x} is so'", "f'{text} is otherwise'", False),
        ("Field(1, description='short')", "Field(1, description='long')", False),
        ("print('x')", "print('so far')", False),
        ("progress(x, 'so far')", "progress(x, 'done')", False),
    ],
)
def test_which_texts_count(tmp_path, monkeypatch, before, after, counts):
    """Of the package's own modules: those that a number may hang on, and none that people read. Of a user's all."""
    own = tmp_path / "clusterfl"
    own.mkdir()
    for module in (registry, digest):
        monkeypatch.setattr(module, "PACKAGE", own)
    monkeypatch.syspath_prepend(tmp_path)
    digests, of_users = [], []
    for name, line in (("one_text", before), ("other_text", after)):
        code = f"import numpy as np\n\ndef f(x, text, table):\n    y = {line}\n    return y\n"
        for folder in (own, tmp_path):
            (folder / f"{name}.py").write_text(code)
        digests.append(digest.of_code([f"clusterfl.{name}"]))
        of_users.append(digest.of_code([name]))
    assert (digests[0] != digests[1]) == counts
    assert of_users[0] != of_users[1]


@pytest.mark.parametrize(
    "before, after, counts",
    [
        ('FEATURES = ["lab value"]', 'FEATURES = ["blood pressure"]', True),
        ("from sklearn.datasets import load_wine as load", "from sklearn.datasets import load_iris as load", True),
        ("progress(1, 'so far')", "progress(2, 'so far')", True),  # whatever a function of that name does here
        ("# a comment", "# another comment", False),
        ("def f():\n    'It is so.'", "def f():\n    'It is otherwise.'", False),
    ],
)
def test_what_counts_of_a_users_module(tmp_path, monkeypatch, before, after, counts):
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for name, text in (("one_of_mine", before), ("other_of_mine", after)):
        (tmp_path / f"{name}.py").write_text(f"{text}\n")
        digests.append(digest.of_code([name]))
    assert (digests[0] != digests[1]) == counts


@pytest.mark.parametrize(
    "module, code, helper",
    [
        ("mine", "from helpers import tools", "helpers/tools.py"),
        ("mine", "import pkg.deep", "pkg/deep.py"),
        ("mine", "import pkg.deep", "pkg/__init__.py"),  # which Python runs first
        ("mine", "def f():\n    from helpers.more import tools", "helpers/more/tools.py"),
        ("mine", "import elsewhere", "../shared/elsewhere.py"),  # another folder of the study's
        ("pkg.part", "from . import deep", "pkg/deep.py"),
        ("pkg.part", "from .sub.deep import x", "pkg/sub/deep.py"),
        ("pkg.sub.part", "from ..deep import x", "pkg/deep.py"),
        ("pkg.sub.part", "import top", "top.py"),
        ("pkg.part", "x = 1", "pkg/__init__.py"),
    ],
)
def test_what_a_users_module_imports_from_its_folders(tmp_path, monkeypatch, module, code, helper):
    place, shared = tmp_path / "study", tmp_path / "shared"
    monkeypatch.setattr(digest, "SEARCHED", [str(place), str(shared)])
    for folder in (shared, place):
        monkeypatch.syspath_prepend(folder)
    file, beside = place / f"{module.replace('.', '/')}.py", place / helper
    for path, text in ((place / "pkg" / "deep.py", ""), (file, f"{code}\n"), (beside, "x = 1\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    before = digest.of_code([module])
    beside.write_text("x = 22\n")
    assert digest.of_code([module]) != before


def test_what_is_installed_is_not_the_users(tmp_path, monkeypatch):
    """Neither from an environment in the study's folder, nor from beside an installed module; its own package is."""
    site = tmp_path / ".venv" / "site-packages"
    for folder in (site, tmp_path):
        monkeypatch.syspath_prepend(folder)
    files = {"foreign/__init__.py": "x = 1\n", "lab/part.py": "import foreign\nfrom lab.deep import tools\n",
             "lab/deep/tools.py": "x = 1\n", "lab-1.0.dist-info/METADATA": ""}  # fmt: skip
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    (tmp_path / "mine.py").write_text("import foreign\n")
    before = [digest.of_code([name]) for name in ("mine", "lab.part")]
    (site / "foreign" / "__init__.py").write_text("x = 22\n")
    assert [digest.of_code([name]) for name in ("mine", "lab.part")] == before
    (site / "lab" / "deep" / "tools.py").write_text("x = 22\n")
    assert digest.of_code(["lab.part"]) != before[1]


def test_canonical_settings_do_not_depend_on_order():
    assert digest.canonical({"b": 1, "a": [1, 2]}) == digest.canonical({"a": [1, 2], "b": 1}) == '{"a":[1,2],"b":1}'


def test_imports_of_functions(tmp_path, monkeypatch):
    """Of a part and of files beside it; not what is imported at once, nor what another folder's functions import."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stage_of_mine.py").write_text("import part_of_mine\n\ndef run():\n    import elsewhere\n")
    place = tmp_path / "parts"
    place.mkdir()
    monkeypatch.syspath_prepend(place)
    text = "import numpy\nimport beside_mine\n\ndef f():\n    import numpy, json\n    from scipy.linalg import eigh\n"
    (place / "part_of_mine.py").write_text(text)
    (place / "beside_mine.py").write_text("class A:\n    def f(self):\n        import torch.func\n")
    assert digest.imported_later(["stage_of_mine", "part_of_mine"]) == ["scipy.linalg", "torch.func"]
    assert digest.imported_later(["stage_of_mine"]) == []
