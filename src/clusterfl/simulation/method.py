"""The hooks of a method. Their defaults are FedAvg: one model for all clients, merged by weighted means.

A method is a frozen dataclass derived from `Method`; its fields are its options. It holds no state itself: what a run
changes is in `State`, what a method may know is in `Context`. This module and those of the methods don't import torch
at module level, so that settings can be checked, and options listed, without it.

Axes: M clients, m participants, K models, P columns of a model's row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import streams
from ..engine.personal import Columns, Towards
from ..engine.training import Training
from ..errors import UserError
from ..storage.blocks import blocks
from . import server
from .asking import Described, Losses, SampleLosses, Survey
from .assignment import Assignment
from .state import Ids, State

if TYPE_CHECKING:
    from torch import Tensor

    from ..engine.beside import Beside
    from ..engine.features import Features, Head
    from ..engine.task import Towards
    from ..engine.update import Update
    from ..storage.row_store import Readable, Rows

Reveals = Literal["nothing", "choice", "losses"]


class Problem(NamedTuple):
    """Why a method can't run: the option that is at fault ("" if it's none), and a sentence."""

    option: str
    sentence: str


@dataclass(frozen=True)
class Context:
    """What a method may know of the run.

    `training` already includes the method's own settings. `initial(index)` makes the index-th initial model's row [P];
    `allocate(rows, columns)` makes zeros, on disk when they are large. `true_cluster [M]`, the true clusters in this
    round, is for the oracle only. A one-shot method continues from ``clustering [M]``, `warmup` (the warm-up's final
    state) and `members` (the clients' models after it). `survey` sends clients requests beyond training and losses.
    """

    clients: int
    sizes: Ids  # [M] training samples
    seed: int  # of the sampling streams
    training: Training
    initial: Callable[[int], Tensor]
    allocate: Callable[..., Rows]
    parameter_columns: int  # p: the columns from p on are buffers
    survey: Survey
    tensors: Mapping[str, slice] = field(default_factory=dict)  # the columns of each parameter and buffer
    frozen: frozenset[str] = frozenset()  # names of the parameters that no training changes
    true_cluster: Ids | None = None
    words: bool = False  # samples are indices of words or characters
    copies: int = 1  # a model is the sum of this many networks
    classes: int = 0  # 0 for regression
    head: Head | str | None = None  # the network's last layer, or why it has none; None: not known
    clustering: Ids | None = None
    warmup: State | None = None
    members: Callable[[], Readable] | None = None  # [M, P]
    # With privacy, a client's random draws may depend on that client alone (`own_draws`), and models without an update
    # are merged too, because their sums are noise (`merges_all`).
    own_draws: bool = False
    merges_all: bool = False

    def step(self, state: State, touched: Ids, mean: Tensor, round_: int) -> None:
        """Apply mean updates to models with the server's optimiser, see `server.step`."""
        frozen = Columns.of(self.tensors, self.frozen)
        server.step(self.training, state, touched, mean, self.parameter_columns, round_, self.allocate, frozen)


@dataclass(frozen=True)
class Known:
    """What is known when a method is checked: only the settings, or everything that a run knows."""

    training: Training
    clients: int | None = None  # M
    words: bool | None = None  # whether samples are indices of words or characters
    headless: str | None = None  # why there can be no features by class, where that is known
    context: Context | None = None
    numbers: bool | None = None  # whether real numbers are predicted, not classes

    @classmethod
    def of(cls, context: Context) -> Known:
        """Return what a run knows."""
        headless = context.head if isinstance(context.head, str) else None
        return cls(context.training, context.clients, context.words, headless, context, not context.classes)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A federated method. Override the hooks that differ; `clusterfl.simulation.loop` calls them in this order."""

    # What it reads of each participant's training besides the updates' sum, a subset of "updates", "curves",
    # "last_gradient" and "features" (means by class).
    needs: ClassVar[frozenset[str]] = frozenset()
    # What else the server learns of a participant, besides `needs`: nothing, its choice of a model, or its losses.
    reveals: ClassVar[Reveals] = "nothing"
    communicates: ClassVar[bool] = True  # whether participants receive a model and send an update
    asks: ClassVar[str] = ""  # what it requests by `Context.survey`, in words; "": nothing
    one_shot: ClassVar[bool] = False  # whether it continues a clustering, made by the stages before it
    settles: ClassVar[bool] = False  # whether clients keep the cluster of their first participation
    sends_kept: ClassVar[bool] = False  # whether what clients keep is part of their updates, and of the means
    apart: ClassVar[bool] = False  # whether rounds train the state's models without what clients keep
    ending: ClassVar[tuple[str, ...]] = ()  # options that, where they are on, change what the last round leaves
    splits: ClassVar[bool] = False  # whether its state records how clusters were split, for the report to draw
    own: ClassVar[type | None] = None  # the type of its part of the state
    copies: ClassVar[int] = 1  # a model is this many networks, whose outputs are added up (`engine.modules.Sum`)

    @property
    def assigns(self) -> bool:
        """Whether each round assigns its participants, and merges updates by these assignments."""
        return type(self).assign is not Method.assign

    @property
    def places(self) -> bool:
        """Whether it has a model for a client that never trained."""
        return self.communicates and (self.sends_kept or type(self).keeps is Method.keeps)

    @property
    def clip(self) -> float:
        """The Euclidean norm that updates are clipped to."""
        return math.inf

    def check(self, known: Known) -> Iterator[Problem]:
        """Yield what it can't do with a federation and settings, as far as these are known.

        Both the configuration's check and the run call this. A sentence names the value, what is allowed and the fix.
        """
        clusters = getattr(self, "clusters", None)
        if clusters and known.clients and clusters > known.clients:
            yield Problem("clusters", f"{clusters} clusters for {known.clients} clients; allowed: 1 to {known.clients}")

    def unprotected(self) -> str | None:
        """Return what clients reveal that noise on sums, choices and losses doesn't protect; None: nothing."""
        return ", ".join([*sorted(self.needs), *([self.asks] if self.asks else [])]) or None

    def settings(self, training: Training) -> Training:
        """Return the training settings with the changes that this method makes to them."""
        return training

    def begin(self, context: Context) -> State:
        """Return the state before the first round: ``theta [K, P]`` and ``labels [M]`` (-1 = none yet)."""
        return State(context.initial(0)[None].clone(), np.zeros(context.clients, dtype=np.int64))

    def keeps(self, context: Context) -> Collection[str]:
        """Return the names of the tensors that each client keeps: trained by it, never sent, no part of any mean.

        The models' own values of them stay as they begin. Clients start from these values, unless `begin` gives them
        others (`State.personal`). A newcomer gets no other client's, see `places`.

        With `sends_kept` they are also sent and averaged: a client starts from its own, a newcomer from the mean.
        With `apart` as well, rounds train, send and average the state's models, and what clients keep is scored; it is
        trained by `prepare` or `beside`.
        """
        return ()

    def features(self, context: Context, state: State) -> Features | None:
        """Return what training also does with the features, the inputs of the network's last layer; None: nothing."""
        return None

    def fixed(self, context: Context) -> Collection[str]:
        """Return the names of the tensors that a round's training doesn't change."""
        return ()

    def alone(self, training: Training) -> Training | None:
        """Return the settings of participants' extra training, of what they keep or of one more model; None: none."""
        return None

    def towards(self, context: Context, state: State) -> Towards:
        """Return what the proximal term pulls participants to: their start, the model given to them, or model k (int).

        A participant that starts from another model than k is sent k, too; the method counts this (`Context.survey`).
        """
        return "start"

    def free(self, context: Context) -> Collection[str]:
        """Return the names of the tensors that the proximal term doesn't pull."""
        return ()

    def beside(self, context: Context, state: State) -> Beside | None:
        """Return what participants train in addition to what they send, a model that they keep `apart`; None: nothing.

        `Envelope`: they send a centre and keep the model that was pulled to it. `Lockstep`: a second model takes steps
        on the same mini-batches, and they keep a mix of the two.
        """
        return None

    def turns(self, context: Context, round_: int) -> Sequence[Collection[str]]:
        """Return, for each turn of a round's training, the names of the tensors it trains; empty: all at once.

        A turn is a training by the settings, with a new optimiser, from where the previous turn ended. It changes no
        other parameters.
        """
        return ()

    def common(self, context: Context) -> Collection[str]:
        """Return the names of the tensors that all models share; `begin` must make them equal in all models.

        In these tensors all participants' updates, whichever model they trained, form one mean, added to every model.
        """
        return ()

    def drifted(self, context: Context, state: State) -> None:
        """React to a change of clients' data in the round that begins; labels may change."""

    def sample(self, context: Context, state: State, round_: int) -> Ids:
        """Return who takes part, ascending; by default `draw` takes a share of all clients."""
        return draw(context, np.arange(context.clients), round_)

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """Return which model each participant starts from, and which one its update is added to; see `Assignment`.

        `state.own` and ``state.mixture`` may change.
        """
        return Assignment(state.labels[clients])

    def prepare(self, context: Context, state: State, round_: int, clients: Ids) -> None:
        """Do what participants do between assignment and training; what they keep and `state.own` may change."""

    def regroup(self, context: Context, state: State, update: Update) -> None:
        """Read the updates; may change ``state.own`` and split clusters, with new models and labels."""

    def weights(self, context: Context, clients: Ids) -> NDArray[np.float64]:
        """Return the weight of each participant's update, [m]."""
        if context.training.weights == "uniform":
            return np.ones(len(clients))
        return context.sizes[clients].astype(np.float64)

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """Add each cluster's weighted mean update to its model; the state is changed.

        A cluster without participants keeps its model, unless the context has `merges_all`; so does one whose
        participants' weights are all 0.

        Parameters
        ----------
        state
            The state before the round's updates are added.
        update
            With the sums [K, P] of weighted updates; in tensors that are `common` they are sums over all models.
        target, weights : [m]
            The model that each update is added to, and its weight; without the updates that were dropped.
        """
        import torch

        assert update.sums is not None
        models, training = len(state.theta), context.training
        common = Columns.of(context.tensors, self.common(context))
        divisor: NDArray[Any]
        if training.divisor == "ratio":
            members = np.bincount(state.labels[state.labels >= 0], minlength=models)
            divisor = training.participation * members
        elif training.divisor == "all":
            divisor = np.full(models, weights.sum())
        elif training.divisor == "expected":
            divisor = np.full(models, training.participation * context.clients / models)
        else:
            divisor = np.bincount(target, weights=weights, minlength=models)
        touched = np.arange(models) if context.merges_all else np.unique(target)
        touched = touched[divisor[touched] != 0]
        for part in blocks(len(touched), 4 * 8 * state.theta.shape[1]):  # a step needs four such arrays of float64
            rows = touched[part]
            sums = update.sums[torch.as_tensor(rows)]
            mean = sums / torch.as_tensor(divisor[rows], dtype=torch.float64)[:, None]
            if len(common):
                everybody = divisor[0] if training.divisor == "all" else divisor.sum()
                common.put(mean, common.taken(sums) / everybody)
            context.step(state, rows, mean, update.round)
        if len(common) and len(touched):
            server.share(state, common, int(touched[0]))

    def placing(self, state: State) -> Rows:
        """Return the models [K, P] that the losses given to `place` are measured on: by default the current ones."""
        return state.theta

    def place(self, state: State, losses: NDArray[np.float64]) -> Ids:
        """Return the model of each client that never trained, from its losses [m, K]; -1 where there is none for it.

        Not called if `places` is false. The default is the model of least loss, the first one on ties.
        """
        return np.asarray(choose(losses))

    def blend(self, state: State, losses: SampleLosses) -> NDArray[np.float64]:
        """Return each model's share [m, K] in the predictions of clients that never trained.

        Called if clients predict by a mixture of models (`State.mixture`). The default takes, for each client, only its
        model of least loss.
        """
        return np.eye(losses.values.shape[1])[np.asarray(choose(losses.means))]

    def recognise(self, state: State, described: Described) -> Ids | None:
        """Return the model of each client that never trained, from its samples' features, without labels.

        After None `place` is called, which goes by losses. Not called if `places` is false.
        """
        return None

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """Estimate how many numbers clients send and receive besides models, updates and losses, in all `rounds`.

        `participations` is the sum over clients of the rounds they take part in; a model has `columns` numbers.
        """
        return 0.0

    def spent(self, context: Context, round_: int) -> float:
        """Return the privacy loss epsilon of all rounds up to this one; NaN where nothing is guaranteed."""
        return math.nan

    def facts(self, context: Context) -> dict[str, Any]:
        """Return what a result's manifest records about the method."""
        return {}


def settled(method: Method, context: Context) -> Context:
    """Return the context with the method's own settings of training."""
    return replace(context, training=method.settings(context.training))


def prepared(method: Method, context: Context) -> Context:
    """Return the context with the method's own settings of training, once the method has been checked.

    Raises
    ------
    UserError
        If the method can't do what is asked.
    """
    if method.copies != context.copies:
        raise UserError(
            f"a model of method {type(method).__name__} is the sum of networks as of copies={method.copies}, and here "
            f"it is of copies={context.copies}; make the engine with copies={method.copies}"
        )
    context = settled(method, context)
    for key, problem in method.check(Known.of(context)):
        raise UserError(f"{key}: {problem}" if key else problem)
    return context


def choose(losses: Any) -> Any:
    """Return for each client the model of least loss; the first one on ties.

    Parameters
    ----------
    losses : [m, K]
        ``losses[i, k]`` is the mean loss of model k on client i's data; NaN counts as infinite.

    Returns
    -------
    [m], of the same kind (numpy or torch) as the input.
    """
    if hasattr(losses, "detach"):
        import torch

        return torch.as_tensor(choose(losses.detach().cpu().numpy()))
    losses = np.asarray(losses, dtype=np.float64)
    return np.argmin(np.where(np.isnan(losses), np.inf, losses), axis=1)


def draw(context: Context, members: Ids, round_: int, count: int | None = None) -> Ids:
    """Draw `count` of the `members` (by default the share `participation`), ascending, by keyed hashes.

    With ``sampler: fixed`` those with the smallest hashes, at least one: a draw without replacement. With ``poisson``
    each one whose hash, as a number in [0, 1), is below `participation`: independently, perhaps nobody.
    """
    if context.training.sampler == "poisson":
        if count is not None:
            raise UserError(
                "training.sampler: 'poisson' draws each client by itself, and this method wants as many of each "
                "cluster in every round; set sampler: fixed"
            )
        shares = streams.uniform(context.seed, "sample", round_, members)
        return np.sort(members[shares < context.training.participation])
    count = context.training.participants(len(members)) if count is None else count
    if count >= len(members):
        return np.sort(members)
    bits = streams.hashed(context.seed, "sample", round_, members)
    return np.sort(members[np.argsort(bits, kind="stable")[:count]])


def check_labels(labels: Ids, clients: int, source: str) -> Ids:
    """Return labels [M] as they are, or say what is wrong with them."""
    if len(labels) != clients:
        raise UserError(f"{source} has {len(labels)} clients, the federation has {clients}")
    if labels.min() < 0:
        raise UserError(f"{source} leaves client {int(np.argmin(labels))} without a cluster; every client needs one")
    return labels.astype(np.int64)
