"""How methods with several models may begin; a module without torch, as settings are checked by it before a run."""

from __future__ import annotations


def start_problem(
    clusters: int, start: str, first_round: str, ties: str | None = None, start_noise: float | None = None
) -> str | None:
    """Return what is wrong with how IFCA begins, or None."""
    if start_noise and start != "identical":
        return f"start_noise: {start_noise:g} is for copies of one model; set start: identical, or leave it away"
    equal = start == "identical" and not start_noise and clusters > 1
    if equal and first_round == "losses" and ties is None:
        return (
            "start: identical makes all losses equal in the first round; set first_round: random, or, of method ifca, "
            "ties: first, which gives everybody the first model, or start_noise above 0"
        )
    return None
