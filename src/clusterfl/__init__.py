"""clusterfl: clustered federated learning, rerun, compared and checked.

Importing the package chooses the kernels that compute (`processor`) and imports nothing heavy; `clusterfl.load` and
`clusterfl.run` come from `clusterfl.api`.
"""

from typing import Any

from .engine import processor

__version__ = "0.1.0"
processor.choose()


def __getattr__(name: str) -> Any:
    if name in ("load", "run"):
        from importlib import import_module

        return getattr(import_module("clusterfl.api"), name)
    raise AttributeError(f"module 'clusterfl' has no attribute '{name}'")
