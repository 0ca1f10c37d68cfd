"""Estimators for scikit-learn, trained by lifting."""

from torchlift.contrib.sklearn.estimators import LiftedClassifier, LiftedRegressor

__all__ = ["LiftedClassifier", "LiftedRegressor"]
