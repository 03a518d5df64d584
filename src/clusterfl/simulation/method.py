"""The hooks of a method, with their defaults: one model for all, everybody takes part, weighted mean.

A method is a frozen dataclass derived from `Method`; its fields are its options. It keeps nothing itself: what a run
changes is its `State`, what it may know is its `Context`. This module and those of the methods import no torch at
their top, so that settings are checked, and options listed, without it.

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
    """What a method can't do: the option that says so, or "" where it's none, and a sentence."""

    option: str
    sentence: str


@dataclass(frozen=True)
class Context:
    """What a method may know of the run.

    `training` has the method's own settings in it. `initial(index)` makes the index-th initial model's row [P];
    `allocate(rows, columns)` makes zeros, on disk when they are large. `true_cluster [M]`, of the round, is for the
    oracle only.
    ``clustering [M]``, `warmup` (its final state) and `members` (its clients' models) are what a one-shot method
    continues. `survey` is what clients can be asked for apart from rounds.
    """

    clients: int
    sizes: Ids  # [M] training samples
    seed: int  # of the sampling streams
    training: Training
    initial: Callable[[int], Tensor]
    allocate: Callable[..., Rows]
    parameter_columns: int  # p: the columns beyond are buffers
    survey: Survey
    tensors: Mapping[str, slice] = field(default_factory=dict)  # the columns of each parameter and buffer
    frozen: frozenset[str] = frozenset()  # names of the parameters that no training changes
    true_cluster: Ids | None = None
    words: bool = False  # samples are numbers of words or characters
    copies: int = 1  # networks whose sum a model is
    classes: int = 0  # none where real numbers are predicted
    head: Head | str | None = None  # the network's last layer, or why it has none; None: not known
    clustering: Ids | None = None
    warmup: State | None = None
    members: Callable[[], Readable] | None = None  # [M, P]
    # With privacy: what is drawn for a client may depend on nothing but this client, and models that got no update are
    # merged, too, their sums being noise.
    own_draws: bool = False
    merges_all: bool = False

    def step(self, state: State, touched: Ids, mean: Tensor, round_: int) -> None:
        """Move models by their mean updates as the server's optimiser does, see `server.step`."""
        frozen = Columns.of(self.tensors, self.frozen)
        server.step(self.training, state, touched, mean, self.parameter_columns, round_, self.allocate, frozen)


@dataclass(frozen=True)
class Known:
    """What is known when a method is checked: settings alone, or all that a run has."""

    training: Training
    clients: int | None = None  # M
    words: bool | None = None  # whether samples are numbers of words or characters
    headless: str | None = None  # why the network has no features of classes, where that is known
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

    # Of "updates", "curves", "last_gradient", "features" (means by class): what it reads of each participant's training
    # besides the updates' sum.
    needs: ClassVar[frozenset[str]] = frozenset()
    # What the server learns of a participant besides what is needed: nothing, its choice of a model, or its losses.
    reveals: ClassVar[Reveals] = "nothing"
    communicates: ClassVar[bool] = True  # whether participants receive a model and send an update
    asks: ClassVar[str] = ""  # what it asks clients for apart from rounds (`Context.survey`); "": nothing
    one_shot: ClassVar[bool] = False  # whether it continues a clustering, made by the stages before it
    settles: ClassVar[bool] = False  # whether a client's first cluster, once it took part, is its last
    sends_kept: ClassVar[bool] = False  # whether what clients keep is part of their updates, and of the means
    apart: ClassVar[bool] = False  # whether rounds train the state's models, and what clients keep isn't put into them
    ending: ClassVar[tuple[str, ...]] = ()  # options that, where they are on, change what the last round leaves
    splits: ClassVar[bool] = False  # whether its state says how clusters were split, for the report to draw
    own: ClassVar[type | None] = None  # the type of its part of the state
    copies: ClassVar[int] = 1  # of the network, that its model is: their outputs are added up (`engine.modules.Sum`)

    @property
    def assigns(self) -> bool:
        """Whether each round assigns its participants, and merges by where their updates go."""
        return type(self).assign is not Method.assign

    @property
    def places(self) -> bool:
        """Whether it has a model for a client that never trained."""
        return self.communicates and (self.sends_kept or type(self).keeps is Method.keeps)

    @property
    def clip(self) -> float:
        """The Euclidean norm that updates are shortened to."""
        return math.inf

    def check(self, known: Known) -> Iterator[Problem]:
        """Yield what it can't do with a federation and settings, as far as these are known.

        The checker of configurations and the run both ask, so a sentence names value, what is allowed and the way on.
        """
        clusters = getattr(self, "clusters", None)
        if clusters and known.clients and clusters > known.clients:
            yield Problem("clusters", f"{clusters} clusters for {known.clients} clients; allowed: 1 to {known.clients}")

    def unprotected(self) -> str | None:
        """Return what clients reveal that noise on sums, choices and losses can't protect; None: nothing."""
        return ", ".join([*sorted(self.needs), *([self.asks] if self.asks else [])]) or None

    def settings(self, training: Training) -> Training:
        """Return the settings of training as this method has them."""
        return training

    def begin(self, context: Context) -> State:
        """Return the state before the first round: ``theta [K, P]`` and ``labels [M]`` (-1 = none yet)."""
        return State(context.initial(0)[None].clone(), np.zeros(context.clients, dtype=np.int64))

    def keeps(self, context: Context) -> Collection[str]:
        """Return the names of the tensors that each client keeps: trained by it, never sent, no part of any mean.

        A model's columns for them stay as they begin, and are what clients begin with, unless `begin` gives clients
        others (`State.personal`). No one else's are for a newcomer, see `places`.

        With `sends_kept` they are sent, and averaged, too: a client starts from its own and a newcomer from the mean.
        With `apart`, too, rounds train, send and average the state's models as they are, and what clients keep is
        scored, and trained by `prepare`.
        """
        return ()

    def features(self, context: Context, state: State) -> Features | None:
        """Return what training does with what goes into the network's last layer, besides all else; None: nothing."""
        return None

    def fixed(self, context: Context) -> Collection[str]:
        """Return the names of the tensors that a round's training leaves as they are."""
        return ()

    def alone(self, training: Training) -> Training | None:
        """Return the settings by which participants train, besides, what they keep or one more model; None: nothing."""
        return None

    def towards(self, context: Context, state: State) -> Towards:
        """Return where the proximal term pulls a round's participants; a number: all to that one of the models.

        Who starts from another model is sent that one, too; this is the method's to count (`Context.survey`).
        """
        return "start"

    def free(self, context: Context) -> Collection[str]:
        """Return the names of the tensors that the proximal term doesn't pull."""
        return ()

    def beside(self, context: Context, state: State) -> Beside | None:
        """Return what participants train beside what they send; what they keep `apart` comes of it. None: nothing.

        An `Envelope`: they send a centre and keep what was pulled to it. A `Lockstep`: they keep a mix with a second
        model, which takes steps on the same mini-batches.
        """
        return None

    def turns(self, context: Context, round_: int) -> Sequence[Collection[str]]:
        """Return the names of the tensors that each of a round's turns of training trains; none: all at once.

        A turn does what the settings say, with a new optimiser, from where the one before it ended, and leaves all
        other parameters as they are.
        """
        return ()

    def common(self, context: Context) -> Collection[str]:
        """Return the names of the tensors that all models have in common, and `begin` makes equal in them.

        Whichever model a participant trained, there its update is part of one mean, by which all models move.
        """
        return ()

    def drifted(self, context: Context, state: State) -> None:
        """Follow clients whose data change with the round that begins, as far as it knows; labels may change."""

    def sample(self, context: Context, state: State, round_: int) -> Ids:
        """Return who takes part, ascending: a share of all clients, without replacement."""
        return draw(context, np.arange(context.clients), round_)

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """Return which model each participant starts from, and where its update goes; or shares of its samples.

        `state.own` and ``state.mixture`` may change.
        """
        return Assignment(state.labels[clients])

    def prepare(self, context: Context, state: State, round_: int, clients: Ids) -> None:
        """Let participants, assigned by now, do what they do before they train; what they keep and `own` may change."""

    def regroup(self, context: Context, state: State, update: Update) -> None:
        """Look at the updates; may change ``state.own`` and split clusters, with new models and labels."""

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
            As it is before the round's updates are added.
        update
            With the sums [K, P] of weighted updates; in what all models have in common they are over all of them.
        target, weights : [m]
            y, the model each update is added to, and its weight; without the updates that were dropped.
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
        """Return the models [K, P] that the losses given to `place` are measured on: today's by default."""
        return state.theta

    def place(self, state: State, losses: NDArray[np.float64]) -> Ids:
        """Return the model of each client that never trained, from its losses [m, K]; -1 where there is none for it.

        Not called where `places` is false. The default is the model of least loss, the first one on ties.
        """
        return np.asarray(choose(losses))

    def blend(self, state: State, losses: SampleLosses) -> NDArray[np.float64]:
        """Return the shares [m, K] of all models' predictions in those of clients that never trained.

        Called where a state says what mixture its clients predict by (`State.mixture`). The default takes each one's
        model of least loss alone.
        """
        return np.eye(losses.values.shape[1])[np.asarray(choose(losses.means))]

    def recognise(self, state: State, described: Described) -> Ids | None:
        """Return the model of each client that never trained by its samples' features, without labels; None: by losses.

        `place` is called then. Not called where `places` is false.
        """
        return None

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """Return about how many numbers clients send and receive besides models, updates and losses, for estimates.

        In all `rounds`, in which clients take part so often in sum; `columns` are a model's numbers.
        """
        return 0.0

    def spent(self, context: Context, round_: int) -> float:
        """Return the privacy loss epsilon of all rounds up to this one; NaN where nothing is guaranteed."""
        return math.nan

    def facts(self, context: Context) -> dict[str, Any]:
        """Return what a result's manifest says of the method."""
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
    """Return `count` of the `members`, a share if not given, ascending, by keyed hashes; no order matters.

    With ``sampler: fixed`` those with the smallest hashes, at least one: a draw without replacement. With ``poisson``
    those whose own hash, as a share of all, is below `participation`: each by itself, perhaps nobody.
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
