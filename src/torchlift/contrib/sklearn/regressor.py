"""Regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from torchlift.contrib.sklearn.base import LiftedEstimator, own_memory
from torchlift.functions.losses import SquaredError
from torchlift.networks import Network


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
