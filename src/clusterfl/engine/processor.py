"""Which kernels compute: the branch, chosen by the processor before any library multiplies matrices.

PyTorch, and MKL and oneDNN inside it, have kernels for several instruction sets. Each gives other last bits, so which
one computes belongs to a result. And MKL must be made to compute a row of a product in the same way whatever lies
beside it: its strict mode does, on Intel's processors (0 of 448 slices differ in six shapes; without, 274 to 448). On
others MKL ignores mode and instruction set; there a fixed branch settles alignment, and the engine's padding the rest
(docs/reproducibility.md).

Importing the package chooses. CLUSTERFL_BRANCH=avx2 asks for what every processor with AVX2 can run, e.g. for a cluster
of several generations. A variable of a library that is set outside is left as it is, and is part of the branch's name.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from ..errors import UserError

ASKED = "CLUSTERFL_BRANCH"  # environment variable: auto (the default), avx512 or avx2
CHOSEN = "CLUSTERFL_CHOSEN"  # the branch, and what was set for it: a process that is started from here chooses again
VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
AVX2 = {"avx2", "fma"}
# What the libraries are asked for; OpenBLAS, of NumPy and SciPy, chooses among the kernels of AVX-512 by itself.
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
    """Return what Linux says of the first processor; nothing elsewhere."""
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
    """Return whose processor it is: ``intel``, ``amd`` or what it is called."""
    called = _cpuinfo().get("vendor_id", platform.machine() or "unknown")
    return VENDORS.get(called, called.lower())


def able() -> list[str]:
    """Return the branches that the processor can run, the best one first; none where there are no such kernels."""
    flags = set(_cpuinfo().get("flags", "").split())
    return [branch for branch, needed in (("avx512", AVX2 | AVX512), ("avx2", AVX2)) if needed <= flags]


def choose() -> None:
    """Tell the libraries which kernels to take, unless the environment does already."""
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
    """Say if CLUSTERFL_BRANCH asks for what the processor can't run.

    Raises
    ------
    UserError
        Then.
    """
    asked, possible = os.environ.get(ASKED) or "auto", able()
    if asked not in ("auto", *possible):
        raise UserError(
            f"{ASKED}='{asked}': this processor, {name()}, can run {', '.join(possible) or 'neither avx512 nor avx2'}; "
            f"allowed: {', '.join(['auto', *possible])}"
        )


def _for(variable: str, value: str) -> str:
    """Return what a library takes on this processor: of MKL's branches, Intel's alone have AVX-512."""
    return "AVX2,STRICT" if variable == "MKL_CBWR" and vendor() != "intel" else value


def branch() -> str:
    """Return the name of what computes, e.g. ``amd-avx512``; with what the environment says otherwise."""
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
    """Return what a manifest says of the machine."""
    return {"processor": name(), "branch": branch()}


def same_branch(what: str, there: Mapping[str, str], here: Mapping[str, str], instead: str) -> None:
    """Refuse what other kernels made: a result of both could be had again neither here nor there.

    Parameters
    ----------
    what
        What was made.
    there, here
        What its manifest says of its machine, as `record`, and what this one is. On a GPU no bits are promised.
    instead
        The next step.

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
        instead = f"put {ASKED}={wanted} before the command, which this processor can do, or {instead}"
    raise UserError(
        f"{what} was computed on branch '{theirs}' ({there.get('processor', 'unknown processor')}); here is '{ours}' "
        f"({name()}), whose last bits are others; {instead}; see docs/reproducibility.md"
    )
