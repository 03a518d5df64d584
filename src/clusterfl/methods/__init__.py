"""Methods: who trains from which model, and which model the updates go to. One small file each, and a table of all.

A method is a frozen dataclass derived from `clusterfl.simulation.method.Method`; its fields are its options. Its class
variables declare its kind (one-shot, splitting) and what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from ..registry import Registry, fields_model
from ..simulation.method import Method


class Methods(Registry):
    """The table of methods; a user's own method is a class given as ``'module:Class'``."""

    own = "my_module:Class"

    def __getitem__(self, name: str) -> type[Method]:
        kind = super().__getitem__(name)
        if not (isinstance(kind, type) and issubclass(kind, Method) and "__dataclass_params__" in vars(kind)):
            raise UserError(
                f"method '{name}' is {f'the class {kind.__name__}' if isinstance(kind, type) else 'no class'}; a "
                "method is a frozen dataclass derived from clusterfl.simulation.method.Method, whose fields are its "
                "options: @dataclass(frozen=True, kw_only=True), see CONTRIBUTING.md"
            )
        return kind

    def options(self, name: str) -> type[Any]:
        """See `Registry.options`; this imports the method's module, but not torch."""
        kind: Any = self[name]
        return fields_model(kind)

    def make(self, name: str, options: Mapping[str, Any]) -> Method:
        """Return a method with these options, which have been checked."""
        return self[name](**options)


METHODS = Methods(
    "method",
    {
        "fedavg": "clusterfl.methods.fixed:FedAvg",
        "fairavg": "clusterfl.methods.fixed:FairAvg",
        "fedavgm": "clusterfl.methods.fixed:FedAvgM",
        "fedprox": "clusterfl.methods.fixed:FedProx",
        "local": "clusterfl.methods.fixed:Local",
        "oracle": "clusterfl.methods.fixed:Oracle",
        "ifca": "clusterfl.methods.ifca:IFCA",
        "clove": "clusterfl.methods.clove:CLoVE",
        "lcfl": "clusterfl.methods.lcfl:LCFL",
        "cfl": "clusterfl.methods.cfl:CFL",
        "fesem": "clusterfl.methods.fesem:FeSEM",
        "fedgwc": "clusterfl.methods.fedgwc:FedGWC",
        "pacfl": "clusterfl.methods.pacfl:PACFL",
        "flexcfl": "clusterfl.methods.flexcfl:FlexCFL",
        "k-fed": "clusterfl.methods.kfed:KFED",
        "fl-hc": "clusterfl.methods.flhc:FLHC",
        "flux": "clusterfl.methods.flux:FLUX",
        "stocfl": "clusterfl.methods.stocfl:StoCFL",
        "feddrift": "clusterfl.methods.feddrift:FedDrift",
        "fedper": "clusterfl.methods.fedper:FedPer",
        "fedproto": "clusterfl.methods.fedproto:FedProto",
        "fedpac": "clusterfl.methods.fedpac:FedPAC",
        "fedala": "clusterfl.methods.fedala:FedALA",
        "fedcam": "clusterfl.methods.fedcam:FedCAM",
        "fedem": "clusterfl.methods.fedem:FedEM",
        "fedrc": "clusterfl.methods.fedrc:FedRC",
        "fedsoft": "clusterfl.methods.fedsoft:FedSoft",
        "fpfc": "clusterfl.methods.fpfc:FPFC",
        "ditto": "clusterfl.methods.ditto:Ditto",
        "pfedme": "clusterfl.methods.pfedme:PFedMe",
        "apfl": "clusterfl.methods.apfl:APFL",
        "per-fedavg": "clusterfl.methods.perfedavg:PerFedAvg",
    },
)
