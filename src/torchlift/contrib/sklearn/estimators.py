"""The two estimators, and what they share: parameters, network, training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from torchlift.core.checks import check_interval, check_shape
from torchlift.core.errors import invalid_value
from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.liftings import Lifting
from torchlift.networks import MLP, Network
from torchlift.prox import ProximalActivation, as_activation
from torchlift.training import train
from torchlift.training.methods import SolverLike

#: Samples that go through the network at once.
CHUNK = 4096


class LiftedEstimator(BaseEstimator):
    """A multilayer perceptron trained by `torchlift.train`, in the dtype of the data.

    Arguments:
        hidden_layer_sizes: sizes of the hidden layers; () for an affine model.
        activation: a name such as "relu", or a proximal activation such as `SoftThreshold(0.1)`.
        lifting: `Bregman(μ)`, …; by default that of `train`. `Conventional()` for back-propagation.
        solver: a solver of torchlift, or for `Conventional()` an optimiser of torch; by default that of `train`.
        batch_size: samples per step, or "full"; 100 by default.
        max_epochs: passes over the data; by default at least ten, and a thousand steps.
        time_limit: seconds after which training ends in any case.
        validation_fraction: share of the samples that is held out to choose the best parameters; 0 for none.
        random_state: seed of the weights, the order of samples and the held-out ones.
        verbose: show a progress bar, and a line at the end.

    Attributes:
        network_: the trained `MLP`; `network_.to_sequential()` is a plain `nn.Sequential`.
        history_: one row per evaluation, as dictionaries.
        message_: how training ended, as a sentence.
        n_features_in_: number of features.
        feature_names_in_: their names, where the data have names.
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (100,),
        activation: str | ProximalActivation = "relu",
        *,
        lifting: Lifting | None = None,
        solver: SolverLike | None = None,
        batch_size: int | Literal["full"] | None = None,
        max_epochs: int | None = None,
        time_limit: float | None = None,
        validation_fraction: float = 0.0,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.lifting = lifting
        self.solver = solver
        self.batch_size: int | Literal["full"] | None = batch_size
        self.max_epochs = max_epochs
        self.time_limit = time_limit
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.verbose = verbose

    def _train(self, X: np.ndarray, targets: np.ndarray, outputs: int, loss: Loss, kinds: np.ndarray | None) -> None:
        """Build the network and train it.

        Arguments:
            X: (n, features).
            targets: (n, outputs), or labels (n,).
            outputs: of the network.
            loss: to train with.
            kinds: the class of each sample, where held-out samples are to have some of every class.
        """
        where = type(self).__name__
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        held = _held_out(f"{where} validation_fraction", self.validation_fraction, len(X), kinds, seed)
        y, x = torch.from_numpy(X), torch.from_numpy(targets)
        network = MLP(
            [X.shape[1], *check_shape(f"{where} hidden_layer_sizes", self.hidden_layer_sizes), outputs],
            as_activation(self.activation),
            generator=torch.Generator().manual_seed(seed),
            dtype=y.dtype,
        )
        kept = ~held
        result = train(
            network,
            (y[kept], x[kept]),
            validation=(y[held], x[held]) if bool(held.any()) else None,
            loss=loss,
            lifting=self.lifting,
            solver=self.solver,
            batch_size=self.batch_size,
            epochs=self.max_epochs,
            time_limit=self.time_limit,
            seed=seed,
            progress=bool(self.verbose),
        ).raise_if_failed()
        if self.verbose:
            print(f"{where}: {result.message}")
        self.network_ = result.network
        self.history_ = result.history.to_dicts()
        self.message_ = result.message

    @torch.no_grad()
    def _outputs(self, X: Any) -> Tensor:
        """N(X), chunk by chunk."""
        check_is_fitted(self)
        like = self.network_.like
        assert like is not None  # an MLP has parameters
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        y = torch.tensor(rows, dtype=like.dtype)
        return torch.cat([self.network_(part) for part in y.split(CHUNK)])


def own_memory(X: Any) -> np.ndarray:
    """An array that torch may share: contiguous, writable, and no view of the caller's data."""
    return np.array(X, order="C")


def _held_out(where: str, fraction: object, samples: int, kinds: np.ndarray | None, seed: int) -> Tensor:
    """Which samples are held out: a share of all, or of every class, but never a whole one."""
    share = check_interval(where, fraction, "[0, 1)")
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(samples, dtype=torch.bool)
    groups = torch.zeros(samples, dtype=torch.long) if kinds is None else torch.from_numpy(kinds)
    for kind in groups.unique():
        members = (groups == kind).nonzero().flatten()
        chosen = torch.randperm(len(members), generator=generator)[: int(share * len(members))]
        held[members[chosen]] = True
    return held


class LiftedClassifier(ClassifierMixin, LiftedEstimator):
    """Classification into two or more classes by a lifted multilayer perceptron, with cross-entropy.

    Labels may be numbers or text. Features are taken as they are: put a
    `StandardScaler` before the estimator where their sizes differ. Arguments
    and attributes are those of `LiftedEstimator`, with the labels in
    `classes_`.

    Example:
        >>> X = np.linspace(-1, 1, 200).reshape(-1, 1)
        >>> labels = np.where(np.abs(X[:, 0]) < 0.5, "inside", "outside")
        >>> LiftedClassifier((20,), random_state=0).fit(X, labels).score(X, labels) > 0.95
        True
    """

    def fit(self, X: Any, y: Any) -> LiftedClassifier:
        """Train anew on features X (n, features) and labels y (n,)."""
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        self.classes_, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            invalid_value("LiftedClassifier labels", "at least two classes", f"one class: {self.classes_[0]!r}")
        self._train(own_memory(X), labels.astype(np.int64), len(self.classes_), CrossEntropy(), labels)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each sample."""
        chosen = self._outputs(X).argmax(1).numpy()
        return self.classes_[chosen]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, classes), in the order of `classes_`."""
        return self._outputs(X).softmax(1).numpy()


class LiftedRegressor(RegressorMixin, LiftedEstimator):
    """Regression with one or several outputs by a lifted multilayer perceptron.

    Targets are standardised for training and the last layer undoes it, so
    `network_` predicts in the units of the targets, and losses in `history_`
    are in standardised ones. Features are taken as they are: put a
    `StandardScaler` before the estimator where their sizes differ. Arguments
    and attributes are those of `LiftedEstimator`.

    Example:
        >>> X = np.linspace(-1, 1, 200).reshape(-1, 1)
        >>> LiftedRegressor((20,), random_state=0).fit(X, np.abs(X[:, 0])).score(X, np.abs(X[:, 0])) > 0.95
        True
    """

    def fit(self, X: Any, y: Any) -> LiftedRegressor:
        """Train anew on features X (n, features) and targets y (n,) or (n, outputs)."""
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True)
        targets = own_memory(y).astype(X.dtype).reshape(len(X), -1)
        mean, spread = targets.mean(0), targets.std(0)
        spread[spread == 0] = 1
        self._train(own_memory(X), (targets - mean) / spread, targets.shape[1], SquaredError(), None)
        _rescale(self.network_, torch.from_numpy(mean), torch.from_numpy(spread))
        self.n_outputs_ = targets.shape[1]
        self._one_column = y.ndim == 1
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predictions, (n,) or (n, outputs) like the targets of `fit`."""
        outputs = self._outputs(X).numpy()
        return outputs.ravel() if self._one_column else outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@torch.no_grad()
def _rescale(network: Network, mean: torch.Tensor, spread: torch.Tensor) -> None:
    """Replace N by mean + spread·N, in the last layer."""
    run = network.output_run()
    assert run is not None and run.bias is not None  # an MLP ends with one dense layer
    run.weight.mul_(spread[:, None])
    run.bias.mul_(spread).add_(mean)
