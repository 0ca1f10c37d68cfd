"""The estimators keep scikit-learn's own contract."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from torchlift.contrib.sklearn import LiftedClassifier, LiftedRegressor


@parametrize_with_checks([LiftedClassifier((16,), max_epochs=6), LiftedRegressor((16,), max_epochs=6)])
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)
