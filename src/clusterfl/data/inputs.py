"""How stored samples become the numbers that a network sees: a federation's `inputs`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from ..registry import Typed


class Inputs(Typed):
    """Scaling, normalisation and augmentation. Only images (stored as bytes 0..255) are scaled."""

    scale: Literal["unit", "raw"] = Field(
        "unit", description="bytes divided by 255, or unchanged (CLoVE's CIFAR-10, whose batch norm absorbs the factor)"
    )
    mean: list[float] = Field([], description="subtracted after scaling: one number per channel, or one for all")
    std: list[float] = Field([], description="divisor after that: one number per channel, or one for all")
    standardise: bool = Field(
        False,
        description="features get mean 0 and standard deviation 1, both over the members' training samples; one-hot "
        "categories stay 0 and 1",
    )
    squashed: list[Literal["train", "validation", "test"]] = Field(
        [],
        description="splits divided by 255 a second time before normalising (LCFL's code on CIFAR-10 since July 2024, "
        "after its printed runs: test data, and training data without augmentation)",
    )
    augment: Literal["none", "crop-flip", "autoaugment", "ifca"] = Field(
        "none",
        description="augmentation of training images in each step: random crop after padding by 4 and horizontal flip "
        "(FedGWC), AutoAugment's policy for CIFAR-10 (LCFL's dynamic CIFAR-10), or IFCA's 24 x 24 pipeline, which "
        "also crops and standardises test images",
    )
    noise: Literal["fresh"] | None = Field(
        None,
        description="noise of samples whose transform has noise(sigma): fresh, drawn in each training step (FedGWC's "
        "released code), or null, drawn once for each sample; evaluations always use the latter",
    )

    target: Literal["label", "input"] = Field(
        "label",
        description="what the network should predict: a sample's label, or the sample itself as the network sees it "
        "(autoencoders: CLoVE's unsupervised runs), with the mean squared error over a sample's numbers as loss",
    )

    later: ClassVar[frozenset[str]] = frozenset({"noise", "standardise"})

    @model_validator(mode="after")
    def _consistent(self) -> Inputs:
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} numbers and std {len(self.std)}; give both, equally many")
        if self.mean and self.standardise:
            raise ValueError("standardise takes means and standard deviations from the data; omit mean and std")
        if any(s <= 0 for s in self.std):
            raise ValueError("std: every number must be above 0")
        if self.scale == "raw" and self.squashed:
            raise ValueError("squashed divides scaled images once more; it needs scale: unit")
        return self
