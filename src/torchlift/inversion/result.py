"""What an inversion returns: inputs, how each of them came out, and the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchlift.core.html import curve, facts, strip
from torchlift.core.solution import Record
from torchlift.inversion.intervals import Calibration, Interval, has_twin, make_interval
from torchlift.inversion.problem import InversionProblem, as_rows
from torchlift.inversion.solver import Status

#: Inputs for which others with the same objective are looked for, and relative to what it is the same.
LOOKED_AT, TWIN = 16, 1e-3

#: What an inversion says of every input.
PER_INPUT = (
    *("x", "residual", "gaps", "objective", "bound", "start_residual", "start_objective"),
    *("status", "steps", "monotone", "weight"),
)
#: Outputs are not met where the residual is more than this part of their size, and so many times that of the noise.
UNMET, NOISY = 0.3, 2.0


@dataclass(frozen=True, eq=False)
class WeightTrace:
    """Which weights a rule tried, and what it saw.

    Arguments:
        rule: its name.
        criterion: what was compared: "SURE", "residual / target" or "curvature".
        weights: (K,) or (K, B), in the order in which they were tried.
        values: the criterion, of the same shape.
        note: one sentence, such as that a target was out of reach; empty if there is nothing to say.
    """

    rule: str
    criterion: str
    weights: Tensor
    values: Tensor
    note: str = ""

    def rows(self) -> list[dict[str, float]]:
        """One row per trial, with the mean over images, for tables and plots."""
        weights, values = (each.double().reshape(len(each), -1) for each in (self.weights, self.values))
        means = zip(weights.log().mean(1).exp().tolist(), values.mean(1).tolist(), strict=True)
        return [{"weight": weight, self.criterion: value} for weight, value in means]


@dataclass(frozen=True, eq=False)
class Inversion:
    """Inputs that a network maps to given outputs, with what is known about each of them.

    Arguments:
        x: the inputs (B, *in_shape); where an image did not converge, the best that it met.
        residual: ‖N(x) − y‖ through the network itself: (B,).
        gaps: B_r(z_r, v_r) of every layer, 0 where a layer is satisfied exactly: (B, n).
        objective: what was minimised, at the end: (B,).
        bound: what the objective could still gain to first order, relative to it, by the residuals of the
            optimality conditions (see `InversionSolver`); for "exact" the relative duality gap: (B,).
        start_residual, start_objective: the same of the start: (B,).
        status: a `Status` per image: (B,).
        steps: steps of each image: (B,).
        monotone: whether the objective of an image never increased: (B,).
        weight: the weight of the prior: (B,).
        duality_gap: relative duality gap, a certificate for convex problems: (B,); None elsewhere.
        history: one record per step, with the mean objective.
        weight_trace: how the weight was chosen; None where it was given.
        projected: how many entries of y were moved into the range of the last activation.
        problem: what was solved.
        noise_level: of y, where it was given.
    """

    x: Tensor
    residual: Tensor
    gaps: Tensor
    objective: Tensor
    bound: Tensor
    start_residual: Tensor
    start_objective: Tensor
    status: Tensor
    steps: Tensor
    monotone: Tensor
    weight: Tensor
    duality_gap: Tensor | None = None
    history: tuple[Record, ...] = ()
    weight_trace: WeightTrace | None = None
    projected: int = 0
    problem: InversionProblem | None = None
    noise_level: float | None = None

    @property
    def converged(self) -> bool:
        """Whether all images converged."""
        return bool((self.status == Status.CONVERGED).all())

    @property
    def failed(self) -> Tensor:
        """Which images diverged or stalled: (B,)."""
        return (self.status == Status.DIVERGED) | (self.status == Status.STALLED)

    def interval(
        self, level: float = 0.9, *, noise_level: float | None = None, calibration: Calibration | None = None
    ) -> Interval:
        """Intervals that are to hold a share `level` of the true entries, by Laplace's approximation.

        Arguments:
            noise_level: of y; by default the one that was given to `invert`, else estimated from the residual.
            calibration: of `calibrate`, for factors that hold on images like held-out ones; else those of a
                normal distribution, which know nothing of how far the prior is from the truth.
        """
        assert self.problem is not None  # `invert` says what it solved
        noise = self.noise_level if noise_level is None else noise_level
        return make_interval(self.problem, self.x, level, noise, calibration)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many images ended how: {"converged": 97, "max_steps": 3}."""
        found = {status.name.lower(): int((self.status == status).sum()) for status in Status}
        return {name: count for name, count in found.items() if count}

    @cached_property
    def _open(self) -> list[str]:
        """What is known to leave the inputs open; looked for when it is asked for, on a few of them."""
        problem = self.problem
        if problem is None or problem.lifted or problem.blind:
            return []
        inputs, outputs, sentences = self.x[0].numel(), problem.output[0].numel(), []
        if outputs < inputs and not problem.split.parts and not problem.anchor:
            sentences.append(
                f"Outputs of {outputs} entries cannot determine inputs of {inputs}, and there is no prior: others fit."
            )
        if self.noise_level is not None and not problem.split.parts and not problem.anchor:
            sentences.append(
                "Without a prior or a decoder a noise level changes error bars only: the noise was fitted, too. "
                "Pass a prior, such as torchlift.priors.Tikhonov()."
            )
        some = torch.linspace(0, len(self.x) - 1, min(LOOKED_AT, len(self.x)), device=self.x.device).long()
        try:
            count = int(has_twin(problem.select(some), self.x[some], TWIN, self.start_objective[some]).sum())
        except RuntimeError:  # a network without second derivatives
            count = 0
        if count:
            sentences.append(
                f"{count} of {len(some)} {_noun(self.x)} that were looked at are not determined: "
                "other inputs, 10 % away, have the same objective."
            )
        return sentences

    @property
    def _unmet(self) -> str:
        """That no input was found which the network maps near some outputs; converged or not, these are no answers."""
        if self.problem is None:
            return ""
        outputs = as_rows(self.problem.output)
        least = UNMET * torch.linalg.vector_norm(outputs, dim=1)
        if self.noise_level is not None:
            least = least.clamp_min(NOISY * self.noise_level * outputs.shape[1] ** 0.5)
        count = int((self.residual > least).sum())
        if not count:
            return ""
        reason = "is the weight of the prior too large?" if self.problem.split.parts else "or is another start needed?"
        text = f"The outputs of {count} of {len(outputs)} {_noun(self.x)} are not met: the residual is more than "
        return f"{text}{100 * UNMET:.0f} % of them. Do they come from this network, {reason}"

    @property
    def _noisier(self) -> str:
        """That residuals are much larger than the noise that was named, which weights and error bars follow."""
        if self.noise_level is None or self.problem is None:
            return ""
        typical = self.noise_level * self.problem.output[0].numel() ** 0.5
        ratio = float(self.residual.median()) / typical
        if not ratio > NOISY:
            return ""
        return (
            f"Residuals are {ratio:.3g} times what noise of standard deviation {self.noise_level:.3g} in every output "
            "makes: is there more of it?"
        )

    @property
    def message(self) -> str:
        """One or more sentences for people."""
        parts = [
            f"{count} of {len(self.status)} {_noun(self.x)}: {Status[name.upper()].sentence}."
            for name, count in self.counts.items()
        ]
        parts.append(
            f"Mean residual ‖N(x) − y‖ {_change(self.start_residual, self.residual)}, "
            f"objective {_change(self.start_objective, self.objective)}."
        )
        outside = int(((self.status == Status.DIVERGED) & ~self.start_objective.isfinite()).sum())
        if outside:
            text = f"The network's outputs at the first guess of {outside} of them are not finite numbers: "
            parts.append(f"{text}pass inputs that it takes as start.")
        parts += [sentence] if (sentence := self._unmet) else []
        parts += [sentence] if (sentence := self._noisier) else []
        parts += self._open
        increased = int((~self.monotone).sum())
        if increased:
            parts.append(f"The objective of {increased} of them increased at least once.")
        if self.projected:
            parts.append(f"{self.projected} entries of y were moved into the range of the last activation.")
        if self.weight_trace is not None and self.weight_trace.note:
            parts.append(self.weight_trace.note)
        return " ".join(parts)

    def __repr__(self) -> str:
        return f"Inversion({len(self.x)} inputs of shape {tuple(self.x.shape[1:])}: {self.message})"

    def _repr_html_(self) -> str:
        rows = {
            _noun(self.x): len(self.x),
            "ended": ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.counts.items()),
            "residual ‖N(x) − y‖": _spread(self.residual),
            "weight": _spread(self.weight),
            "possible gain, relative": _spread(self.bound),
            "steps": _spread(self.steps.double()),
            "monotone": f"{int(self.monotone.sum())} of {len(self.x)}",
        }
        if self.duality_gap is not None:
            rows["duality gap"] = _spread(self.duality_gap)
        images = strip("inputs", self.x)
        return facts("Inversion", rows) + curve("objective", [record.value for record in self.history]) + images


def _noun(x: Tensor) -> str:
    """What a batch of inputs is called in messages."""
    return "images" if x.ndim == 4 else "samples"


def join(parts: Sequence[Inversion]) -> Inversion:
    """The inversions of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    values: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in PER_INPUT}
    gaps = [part.duality_gap for part in parts if part.duality_gap is not None]
    history = _average([(part.history, len(part.x)) for part in parts])
    return Inversion(**values, duality_gap=torch.cat(gaps) if gaps else None, history=history)


def _average(histories: Sequence[tuple[tuple[Record, ...], int]]) -> tuple[Record, ...]:
    """Mean objectives of batches that ran one after the other; a batch that is done keeps its last value."""
    total = sum(count for _, count in histories)
    records = []
    for k in range(max(len(history) for history, _ in histories)):
        now = [(history[min(k, len(history) - 1)], count) for history, count in histories if history]
        value = sum(record.value * count for record, count in now) / total
        running = sum(h[k].extra.get("running", 0.0) for h, _ in histories if k < len(h))
        longest = max((record for record, _ in now), key=lambda record: record.step)
        seconds = sum(record.seconds for record, _ in now)
        residual, change = max(r.residual for r, _ in now), max(r.change for r, _ in now)
        records.append(Record(longest.step, seconds, value, residual, change, extra={"running": running}))
    return tuple(records)


def _change(before: Tensor, after: Tensor) -> str:
    return f"{float(before.double().mean()):.4g} → {float(after.double().mean()):.4g}"


def _spread(values: Tensor) -> str:
    least, most = float(values.min()), float(values.max())
    return f"{least:.4g}" if least == most else f"{least:.4g} to {most:.4g}, mean {float(values.double().mean()):.4g}"
