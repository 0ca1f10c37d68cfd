"""What steps are worth: how many more of them a training needs where its signals are late, or travel slowly."""

from __future__ import annotations

from torchlift.lab.planning.forecast import Forecast
from torchlift.lab.planning.work import Work

#: Share of a step's worth that each update between the two ways of a batch costs in the first stage of late sweeps.
#: Simulated in one process by `SweepDescent(stages=P)`: see "Layers at the same time" in docs/cluster.md.
PRICE = 0.04
#: The longest delay that was simulated; beyond it the price is a guess.
LONGEST = 9


def steps_needed(forecast: Forecast, work: Work) -> float:
    """Steps to the quality that one step after the other of back-propagation or sweeps would reach in one.

    - One with back-propagation, and with sweeps that are not divided into stages.
    - 1 + 0.04 τ with late sweeps, where τ = 2(P − 1) − 1 updates of the first of P
      stages lie between the two ways of a batch: from the validation error of a deep autoencoder with
      2, 4 and 6 stages, and the steps without delay that lead to the same error.
    - L with lifted variables that all move at once: the loss gradient propagates one of L layers per step.
    """
    if forecast.method == "lifting":
        return float(work.layers)
    if forecast.method == "late sweeps" and forecast.layers > 1:
        return 1.0 + PRICE * (2 * (forecast.layers - 1) - 1)
    return 1.0


def guessed(forecast: Forecast) -> bool:
    """Whether the delay is longer than any that was measured."""
    return forecast.method == "late sweeps" and 2 * (forecast.layers - 1) - 1 > LONGEST
