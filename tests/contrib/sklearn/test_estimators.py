"""The estimators at work among scikit-learn's own tools."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import torchlift as tl
from torchlift.contrib.sklearn import LiftedClassifier, LiftedRegressor
from torchlift.core.errors import TorchliftError


def waves(samples: int = 120, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Two features, and two targets of very different sizes."""
    X = np.random.default_rng(0).uniform(-1, 1, (samples, 2)).astype(dtype)
    return X, np.stack([np.abs(X[:, 0]), 1000 + 200 * X[:, 1]], 1).astype(dtype)


def regressor(**settings: Any) -> LiftedRegressor:
    small = {"hidden_layer_sizes": (12,), "batch_size": 30, "max_epochs": 20, "random_state": 0}
    return LiftedRegressor(**{**small, **settings})


def test_classifies_digits_in_a_pipeline() -> None:
    X, labels = load_digits(return_X_y=True)
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])[labels]
    X, held_X, y, held_y = train_test_split(X, names, test_size=0.3, random_state=0, stratify=names)
    estimator = LiftedClassifier((64,), batch_size=50, max_epochs=8, random_state=0)
    model = make_pipeline(StandardScaler(), estimator).fit(X, y)
    assert model.score(held_X, held_y) > 0.94
    assert list(model.classes_) == sorted(set(names))
    chances = model.predict_proba(held_X)
    assert chances.shape == (len(held_X), 10)
    np.testing.assert_allclose(chances.sum(1), 1, rtol=1e-12)
    assert (model.classes_[chances.argmax(1)] == model.predict(held_X)).all()


def test_regression_without_scaled_targets() -> None:
    """Targets from 25 to 346, and features as they come: as good as the linear model, which is hard to beat here."""
    X, y = load_diabetes(return_X_y=True)
    model = make_pipeline(StandardScaler(), regressor(hidden_layer_sizes=(8,), max_epochs=10))
    assert cross_val_score(model, X, y, cv=3).mean() > 0.42


def test_several_outputs_of_different_sizes() -> None:
    X, y = waves()
    model = regressor(max_epochs=60).fit(X, y)
    assert model.predict(X).shape == y.shape
    assert model.score(X, y) > 0.95
    assert model.n_outputs_ == 2 and model.n_features_in_ == 2
    # The last layer undoes the scaling, so the network alone predicts in the units of the targets.
    with torch.no_grad():
        alone = model.network_.to_sequential()(torch.from_numpy(X)).numpy()
    np.testing.assert_array_equal(alone, model.predict(X))
    assert model.history_[-1]["loss"] < 0.1
    assert regressor(max_epochs=1).fit(X, y[:, :1]).predict(X).shape == (len(X), 1)
    assert regressor(max_epochs=1).fit(X, y[:, 0]).predict(X).shape == (len(X),)


def test_constant_targets() -> None:
    X, _ = waves()
    np.testing.assert_allclose(regressor(max_epochs=30).fit(X, np.full(len(X), 7.0)).predict(X), 7.0, atol=0.05)


def test_grid_search_over_parts_of_torchlift() -> None:
    X, y = waves()
    grid = {
        "hidden_layer_sizes": [(), (12,)],
        "activation": ["relu", tl.SoftThreshold(0.1)],
    }
    search = GridSearchCV(regressor(), grid, cv=2).fit(X, y[:, 0])
    assert search.best_params_["hidden_layer_sizes"] == (12,)  # |x| is not affine
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"lifting": tl.liftings.Classical(0.5), "max_epochs": 2},
        {"lifting": tl.liftings.Conventional(), "solver": torch.optim.Adam},
        {"batch_size": "full", "lifting": tl.liftings.Bregman(), "max_epochs": 5},
        {"time_limit": 0.2, "max_epochs": None},
        {"validation_fraction": 0.25},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_settings_reach_training(settings: dict[str, Any]) -> None:
    X, y = waves()
    model = regressor(**settings).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    assert model.message_
    assert clone(model).get_params() == model.get_params()
    assert ("Best" in model.message_) == ("validation_fraction" in settings)


def test_random_state_decides_everything() -> None:
    X, y = waves()
    first, again, other = (regressor(random_state=seed).fit(X, y).predict(X) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    drawn = [regressor(random_state=np.random.RandomState(5), max_epochs=3).fit(X, y).predict(X) for _ in range(2)]
    np.testing.assert_array_equal(*drawn)


def test_fitting_again_forgets_and_leaves_the_data_alone() -> None:
    X, y = waves()
    kept = X.copy(), y.copy()
    model = regressor(max_epochs=3).fit(X, -y)
    np.testing.assert_array_equal(model.fit(X, y).predict(X), regressor(max_epochs=3).fit(X, y).predict(X))
    np.testing.assert_array_equal(X, kept[0])
    np.testing.assert_array_equal(y, kept[1])
    twin = copy.deepcopy(model)
    np.testing.assert_array_equal(twin.predict(X), model.predict(X))


def test_single_precision_stays_single() -> None:
    X, y = waves(dtype=np.float32)
    model = regressor(max_epochs=3).fit(X, y)
    assert model.network_.like is not None and model.network_.like.dtype == torch.float32
    assert model.predict(X).dtype == np.float32


def test_samples_do_not_see_each_other_in_predictions() -> None:
    X, y = waves()
    model = regressor(max_epochs=3).fit(X, y)
    order = np.random.default_rng(1).permutation(len(X))
    np.testing.assert_allclose(model.predict(X[order]), model.predict(X)[order], rtol=1e-12)


def test_rare_classes_are_never_held_out() -> None:
    X, _ = waves(40)
    labels = np.r_[np.zeros(38, int), 1, 2]
    model = LiftedClassifier((4,), max_epochs=2, validation_fraction=0.5, random_state=0).fit(X, labels)
    assert list(model.classes_) == [0, 1, 2]


def test_verbose_says_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = waves()
    regressor(max_epochs=2, verbose=True).fit(X, y)
    assert "LiftedRegressor: Trained " in capsys.readouterr().out
    regressor(max_epochs=2).fit(X, y)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"validation_fraction": 1.0}, r"LiftedRegressor validation_fraction: expected a number in \[0, 1\), got 1.0"),
        ({"hidden_layer_sizes": (0,)}, r"LiftedRegressor hidden_layer_sizes\[0\]: expected a whole number >= 1, got 0"),
        ({"activation": "gelu"}, "gelu"),
        ({"max_epochs": 0}, "epochs: expected a whole number >= 1, got 0"),
        ({"lifting": "bregman"}, "expected a lifting such as Bregman"),
    ],
)
def test_bad_settings_are_refused_when_fitting(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(TorchliftError, match=words):
        regressor(**settings).fit(*waves())


def test_bad_data_are_refused() -> None:
    X, y = waves()
    with pytest.raises(TorchliftError, match="LiftedClassifier labels: expected at least two classes, got one class"):
        LiftedClassifier().fit(X, np.zeros(len(X)))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        regressor().fit(X * np.nan, y)
    with pytest.raises(ValueError, match="Unknown label type"):
        LiftedClassifier().fit(X, y[:, 0])
    with pytest.raises(NotFittedError, match="not fitted yet"):
        regressor().predict(X)
