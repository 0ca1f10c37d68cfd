"""Estimators for scikit-learn, trained by lifting."""

from torchlift.sklearn.classifier import LiftedClassifier
from torchlift.sklearn.regressor import LiftedRegressor

__all__ = ["LiftedClassifier", "LiftedRegressor"]
