"""Classification."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from torchlift.contrib.sklearn.base import LiftedEstimator, own_memory
from torchlift.core.errors import invalid_value
from torchlift.functions.losses import CrossEntropy


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
