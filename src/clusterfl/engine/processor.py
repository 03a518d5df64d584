"""The branch: which kernels compute, chosen for the processor before any library multiplies matrices.

PyTorch, and MKL and oneDNN inside it, have kernels for several instruction sets. Their results differ in the last bits,
so results record the branch. MKL must also compute a row of a product in the same way whatever the other rows are: on
Intel's processors its strict mode does (0 of 448 slices differ in six shapes; without it, 274 to 448). On other
processors MKL ignores mode and instruction set; there, fixing the branch makes results independent of alignment, and
the engine's padding does the rest (docs/reproducibility.md).

Importing the package chooses the branch. CLUSTERFL_BRANCH=avx2 requests kernels that every processor with AVX2 can run,
e.g. for a cluster with several generations. A library's variable that the user has set isn't changed; it becomes part
of the branch's name.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from ..errors import UserError

ASKED = "CLUSTERFL_BRANCH"  # environment variable: auto (the default), avx512 or avx2
CHOSEN = "CLUSTERFL_CHOSEN"  # the branch and the variables set for it, so that a child process can choose again
VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
AVX2 = {"avx2", "fma"}
# Variables of the libraries; with AVX-512, OpenBLAS (of NumPy and SciPy) chooses its kernels itself.
VARIABLES: dict[str, dict[str, str]] = {
    "avx512": {
        "MKL_CBWR": "AVX512,STRICT",
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
    },
    "avx2": {
        "MKL_CBWR": "AVX2,STRICT",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
}
OTHERS = ("MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "DNNL_MAX_CPU_ISA", "OPENBLAS_CORETYPE")


@lru_cache(maxsize=1)
def _cpuinfo() -> dict[str, str]:
    """Return Linux's facts about the first processor; an empty dict on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return {}
    rows = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def name() -> str:
    """Return the processor's name."""
    found = _cpuinfo()
    model = found.get("model name") or platform.processor() or platform.machine()
    numbers = [found[key] for key in ("cpu family", "model") if key in found]
    return " ".join([model, *([f"(family {numbers[0]}, model {numbers[1]})"] if len(numbers) == 2 else [])])


def vendor() -> str:
    """Return the processor's vendor: ``intel``, ``amd`` or the system's name for it, in lower case."""
    called = _cpuinfo().get("vendor_id", platform.machine() or "unknown")
    return VENDORS.get(called, called.lower())


def able() -> list[str]:
    """Return the branches that the processor can run, the fastest first; an empty list if it can run none."""
    flags = set(_cpuinfo().get("flags", "").split())
    return [branch for branch, needed in (("avx512", AVX2 | AVX512), ("avx2", AVX2)) if needed <= flags]


def choose() -> None:
    """Set the libraries' variables for the branch, except those that the user has set."""
    before = os.environ.pop(CHOSEN, "").split()
    for variable, _, value in (word.partition("=") for word in before[1:]):
        if os.environ.get(variable) == value:  # set by a process that started this one, and not changed since
            del os.environ[variable]
    asked, possible = os.environ.get(ASKED) or "auto", able()
    branch = next(iter(possible), "auto") if asked == "auto" else asked
    wanted = {variable: _for(variable, value) for variable, value in VARIABLES.get(branch, {}).items()}
    ours = {variable: value for variable, value in wanted.items() if variable not in os.environ}
    os.environ.update(ours)
    os.environ[CHOSEN] = " ".join([branch, *(f"{variable}={value}" for variable, value in ours.items())])


def check() -> None:
    """Check that the processor can run the branch that CLUSTERFL_BRANCH requests.

    Raises
    ------
    UserError
        If it can't.
    """
    asked, possible = os.environ.get(ASKED) or "auto", able()
    if asked not in ("auto", *possible):
        raise UserError(
            f"{ASKED}='{asked}': this processor, {name()}, can run {', '.join(possible) or 'neither avx512 nor avx2'}; "
            f"allowed: {', '.join(['auto', *possible])}"
        )


def _for(variable: str, value: str) -> str:
    """Return a variable's value for this processor: MKL uses AVX-512 only on Intel's processors."""
    return "AVX2,STRICT" if variable == "MKL_CBWR" and vendor() != "intel" else value


def branch() -> str:
    """Return the branch's name, e.g. ``amd-avx512``, followed by the variables that the user has set."""
    chosen = os.environ[CHOSEN].partition(" ")[0]
    wanted = VARIABLES.get(chosen, {})
    other = {
        key: os.environ[key]
        for key in dict.fromkeys((*wanted, *OTHERS))
        if key in os.environ and os.environ[key] != _for(key, wanted.get(key, ""))
    }
    plain = chosen if chosen != "auto" else platform.machine()
    return " ".join([f"{vendor()}-{plain}", *(f"{key}={value}" for key, value in other.items())])


def record() -> dict[str, str]:
    """Return what a manifest records about the machine: processor and branch."""
    return {"processor": name(), "branch": branch()}


def same_branch(what: str, there: Mapping[str, str], here: Mapping[str, str], instead: str) -> None:
    """Refuse a result or checkpoint of another branch: no machine could reproduce what is computed from it here.

    Results of a GPU are accepted, because their bits aren't guaranteed anyway.

    Parameters
    ----------
    what
        The result, for the message.
    there, here
        Its manifest's record of the machine, and this machine's, as from `record`.
    instead
        What to do, for the message.

    Raises
    ------
    UserError
        If the branches differ.
    """
    theirs, ours = there.get("branch", ""), here.get("branch", "")
    if theirs in ("", ours) or not ours or "cuda" in theirs + ours:
        return
    wanted = theirs.removeprefix(f"{vendor()}-")
    if wanted in able():
        instead = f"put {ASKED}={wanted} before the command, which this processor can run, or {instead}"
    raise UserError(
        f"{what} was computed on branch '{theirs}' ({there.get('processor', 'unknown processor')}); here is '{ours}' "
        f"({name()}), whose results differ in the last bits; {instead}; see docs/reproducibility.md"
    )
