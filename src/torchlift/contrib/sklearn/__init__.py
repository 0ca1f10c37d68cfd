"""Estimators for scikit-learn, trained by lifting."""

from torchlift.contrib.sklearn.classifier import LiftedClassifier
from torchlift.contrib.sklearn.regressor import LiftedRegressor

__all__ = ["LiftedClassifier", "LiftedRegressor"]
