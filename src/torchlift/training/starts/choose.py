"""Which weights to start from: the given ones, or others where these are better on samples that were held out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from torchlift.core.errors import TorchliftError
from torchlift.core.solution import StepFailure
from torchlift.core.tensors import copy_into
from torchlift.data import Batch
from torchlift.data.base import select_samples
from torchlift.functions.losses import CrossEntropy, Loss
from torchlift.networks import Chain, Network
from torchlift.training.constant_answer import constant_loss
from torchlift.training.modules import apply, in_mode
from torchlift.training.starts.chains import hands_on, range_of, twin, unchanged_if_refused
from torchlift.training.starts.draws import LayerStart, as_torch_draws, weight_of, weighted
from torchlift.training.starts.identity import identity_start
from torchlift.training.starts.layerwise import Sample, identity_fit, layer_wise
from torchlift.training.starts.lsuv import dead_layers, lsuv
from torchlift.training.starts.recording import AFFINE, lsuv_of_module, record
from torchlift.training.starts.scaled import explodes, matched_start, mean_loss, scaled_start

#: Samples on which starts are compared at most.
HELD_OUT = 500
#: Fewer samples than this are not divided: dead layers of chains are revived without a comparison, other modules kept.
FEWEST = 40
#: Setting the weights of a candidate and judging it costs at least as much as so many samples of a step.
CANDIDATE = 8
#: Samples by which outputs that are far off are scaled or matched, whatever the budget: a run that is made longer has
#: the same start then.
REMEDY = 16
#: Another start must leave at most this part of the held-out loss of the given one.
WORTH = 0.98
#: Where layers are dead, a start other than LSUV must leave at most this part of the loss of the best constant answer.
RESPONDS = 0.9

#: Dense layers up to which a classifier keeps torch's draw, and samples by which those of others are rescaled.
SHALLOW, SEEN = 2, 100

AS_GIVEN = "as given"


class Trial:
    """What starts are tried on; a subclass may train each of them for a moment before they are compared.

    Arguments:
        draw: so many samples of the training data, or all where there are fewer.
        loss: None where there are no targets.
        ridge: pull towards the identity in fits.
        samples: that fits look at.
        probe: samples on which layers are checked for being dead.
    """

    def __init__(
        self, draw: Callable[[int], Batch], loss: Loss | None, ridge: float = 1.0, samples: int = 5000, probe: int = 100
    ) -> None:
        self.draw, self.loss, self.ridge, self._samples, self.probe = draw, loss, ridge, samples, probe

    def samples(self, chain: Chain) -> int:
        """Samples that fits of all layers look at; 0 where there is no time for them."""
        return self._samples

    def output_samples(self, chain: Chain) -> int:
        """Samples that a fit of the output alone looks at."""
        return self._samples

    @property
    def affordable(self) -> float:
        """What comparisons may cost beside short runs, in samples of a step."""
        return math.inf

    @property
    def rescales(self) -> bool:
        """Whether outputs that are far off are a matter of the start."""
        return True

    def run(self, network: nn.Module, seen: Batch, candidates: int) -> None:
        """Train one of so many candidates for a moment."""
        return


@dataclass(frozen=True)
class Choice:
    """The start that was chosen.

    Arguments:
        name: "as given", "lsuv", "scaled", "matched", "identity", "identity-fit" or "layer-wise".
        why: in half a sentence.
        losses: held-out loss of every start that was tried, after its short run.
        layers: what was done to each layer.
    """

    name: str
    why: str
    losses: dict[str, float] = field(default_factory=dict)
    layers: tuple[LayerStart, ...] = ()

    @property
    def changed(self) -> bool:
        return self.name != AS_GIVEN

    def summary(self) -> dict[str, Any]:
        """Without the layers, for JSON."""
        return {"name": self.name, "why": self.why, "losses": self.losses}

    @property
    def sentence(self) -> str:
        """For the message of a training; empty where nothing was done and nothing is to be said."""
        return f"Start: {self.name} ({self.why})." if self.changed or self.losses else ""


def choose(network: nn.Module, trial: Trial, generator: torch.Generator | None) -> Choice:
    """Set the weights of a network to the best start.

    - Three or more dense layers one after the other, as torch draws them, begin with LSUV where targets are labels,
      without a comparison.
    - Another network without dead layers keeps its weights, unless its outputs are so
      far off that a constant answer is better by far; or targets have the shape of
      the inputs, all layers are wide enough to hand the input on, and the input
      itself is a better answer than the network's.
    - Otherwise these are compared by their loss on held-out samples, each after
      the same short run where the trial has one: the given weights; LSUV where
      layers are dead; "scaled" and "matched" where outputs are far off
      (`scaled_start`, `matched_start`); "layer-wise"; "identity" and
      "identity-fit" where the input can be handed on. Where layers are dead,
      other starts than LSUV take part only where they are clearly better than any
      constant answer, which shows nothing: such as the given weights of a network
      that adds a weak branch to its input. Ties go to LSUV or "scaled", or else to
      the given weights. Where the budget is too small for a comparison, dead
      layers of chains are revived by LSUV, outputs that are far off scaled or
      else matched, and all other weights kept.
    """
    probe = trial.draw(trial.probe)
    findings = _look(network, probe, trial)
    if findings.labels and (choice := _rescaled(network, probe, trial)) is not None:
        return choice
    if findings.healthy:
        return _kept(network, "no layer is dead")
    names = _candidates(findings, probe, trial)
    sample = _enough_samples(names, findings, trial)
    if sample is None:
        return _remedied(network, findings, probe, trial, generator)
    return _compared(network, names, findings, sample, trial, generator)


@dataclass(frozen=True)
class _Findings:
    """What a few samples say about the given weights.

    Arguments:
        chain: the network as a chain; None for modules that are none.
        dead: the layers that respond to no input, by number or name.
        labels: whether targets are labels, or there are none.
        restores: whether targets have the shape of the inputs, which all layers are wide enough to hand on.
        poor: whether the input itself is a better answer than the network's.
        large: whether the outputs are so far off that a constant answer is better by far.
    """

    chain: Chain | None
    dead: tuple[str, ...]
    labels: bool
    restores: bool
    poor: bool
    large: bool

    @property
    def healthy(self) -> bool:
        return not self.dead and not self.poor and not self.large

    @property
    def base(self) -> str:
        """The start that needs no comparison."""
        return "lsuv" if self.dead else "scaled" if self.large else AS_GIVEN

    @property
    def reason(self) -> str:
        if not self.dead:
            return "outputs were far off"
        return f"layer {self.dead[0]} was dead" if len(self.dead) == 1 else f"{len(self.dead)} layers were dead"


def _look(network: nn.Module, probe: Batch, trial: Trial) -> _Findings:
    chain = network if isinstance(network, Chain) else twin(network, tuple(probe.y.shape[1:]))
    dead, loss = _dead(network, probe), trial.loss
    labels = loss is None or isinstance(loss, CrossEntropy) or not probe.x.is_floating_point()
    restores = not labels and chain is not None and probe.x.shape == probe.y.shape and hands_on(chain)
    poor = restores and loss is not None and _worse_than_input(network, probe, loss)
    healthy = not dead and not poor and trial.rescales
    large = healthy and loss is not None and explodes(network, probe, loss)
    return _Findings(chain, dead, labels, restores, poor, large)


def _candidates(findings: _Findings, probe: Batch, trial: Trial) -> list[str]:
    """The starts that apply, the one that needs no comparison first."""
    names = [findings.base]
    if trial.loss is None:
        return names
    if findings.large and not findings.labels:
        names.append("matched")
    if findings.base != AS_GIVEN:
        names.append(AS_GIVEN)
    if not findings.large and findings.chain is not None and trial.loss.smooth and probe.context is None:
        names += ["identity", "identity-fit"] if findings.restores else []
        names += ["layer-wise"] if trial.samples(findings.chain) > 0 else []
    return names


def _enough_samples(names: list[str], findings: _Findings, trial: Trial) -> Batch | None:
    """Samples for fits and others that are held out; None where the budget or the data are too small to compare."""
    if len(names) == 1:  # so that with a time limit no steps are timed to find the number of samples
        return None
    chain, rest = findings.chain, trial.affordable / len(names)
    if rest < CANDIDATE:
        return None
    fitted = int(min(rest, HELD_OUT)) if chain is None else max(trial.samples(chain), FEWEST)
    if chain is not None and "identity-fit" in names:
        fitted = max(fitted, trial.output_samples(chain))
    sample = trial.draw(fitted + min(HELD_OUT, fitted))
    return sample if len(sample.y) >= FEWEST else None


def _remedied(
    network: nn.Module, findings: _Findings, probe: Batch, trial: Trial, generator: torch.Generator | None
) -> Choice:
    """Without a comparison: what is known to help."""
    revives = bool(findings.dead) and (trial.loss is None or findings.chain is not None)
    for name in ("scaled", "matched") if findings.large else (findings.base,) if revives else ():
        if (layers := _attempt(network, name, probe, trial, generator)) is not None:
            return Choice(name, findings.reason, {}, layers)
    return _kept(network, "")


def _rescaled(network: nn.Module, probe: Batch, trial: Trial) -> Choice | None:
    """LSUV for dense layers one after the other that are as torch draws them, so that each weakens its input.

    None for other networks: convolutions and residual branches did not gain, and trained weights mean something.
    """
    if trial.loss is None or not trial.rescales:
        return None
    if isinstance(network, Chain):
        weights = [weight_of(layer) for layer in weighted(network.layers()).values()]
    else:
        affine = [part for part in network.modules() if type(part) in AFFINE]
        weights = [part.get_parameter("weight") for part in affine]
        owned = sum(parameter.numel() for part in affine for parameter in part.parameters())
        if owned != sum(parameter.numel() for parameter in network.parameters()):
            return None
    dense = all(weight.ndim == 2 and as_torch_draws(weight) for weight in weights)
    if not dense or len(weights) <= SHALLOW:
        return None
    start = copy.deepcopy(network)
    layers = _attempt(start, "lsuv", select_samples(probe, slice(SEEN)), trial, None)
    if layers is None or [layer.way for layer in layers] != ["lsuv"] * (len(weights) - 1) + ["kept"]:
        return None
    copy_into(start.parameters(), network.parameters())
    return Choice("lsuv", "dense layers as torch draws them weaken signals", {}, layers)


class _Start(NamedTuple):
    """A candidate before its short run, and its held-out loss after it."""

    name: str
    loss: float
    network: nn.Module
    layers: tuple[LayerStart, ...]


def _compared(
    network: nn.Module,
    names: list[str],
    findings: _Findings,
    sample: Batch,
    trial: Trial,
    generator: torch.Generator | None,
) -> Choice:
    """The candidate with the least held-out loss after a short run."""
    assert trial.loss is not None  # or there would be one name only
    held = min(HELD_OUT, len(sample.y) // 5)
    seen, unseen = select_samples(sample, slice(held, None)), select_samples(sample, slice(held))
    responds = RESPONDS * constant_loss(trial.loss, seen.x, unseen.x) if findings.dead else math.inf
    seed = torch.Generator() if generator is None else generator
    state = seed.get_state()
    losses: dict[str, float] = {}
    best: _Start | None = None
    for name in names:
        candidate = copy.deepcopy(network)
        seed.set_state(state)  # so that no candidate depends on which others there are
        layers = _attempt(candidate, name, seen, trial, seed)
        if layers is None:
            continue
        start = copy.deepcopy(candidate)
        with torch.random.fork_rng(devices=()):
            losses[name] = _loss_after(candidate, trial, seen, unseen, len(names))
        alternative = name == AS_GIVEN or best is not None
        if findings.dead and alternative and not losses[name] < responds:
            continue
        share = WORTH if best is not None and best.name == names[0] else 1.0
        if math.isfinite(losses[name]) and (best is None or losses[name] < share * best.loss):
            best = _Start(name, losses[name], start, layers)
    if best is None:
        return _kept(network, "no other start applies")
    copy_into(best.network.parameters(), network.parameters())
    why = "held-out loss " + ", ".join(f"{name} {loss:.4g}" for name, loss in losses.items())
    return Choice(best.name, why if findings.poor and not findings.dead else f"{findings.reason}; {why}",
                  losses, best.layers)  # fmt: skip


def _dead(network: nn.Module, probe: Batch) -> tuple[str, ...]:
    """The layers that respond to no input, by number or name."""
    if len(probe.y) < 2:
        return ()
    if isinstance(network, Network):
        return tuple(str(number) for number in dead_layers(network, probe.y, probe.context))
    calls = record(network, probe.y, probe.context)
    return tuple(call.layer or str(number) for number, call in enumerate(calls, start=1) if call.dead)


@torch.no_grad()
def _worse_than_input(network: nn.Module, probe: Batch, loss: Loss) -> bool:
    """Whether the input itself is a better answer; where it is the target, there is nothing to compare with."""
    with in_mode(network, False), torch.random.fork_rng(devices=()):
        output = apply(network, probe.y, probe.context)
    return float(loss.mean(output, probe.x)) > float(loss.mean(probe.y, probe.x))


def _attempt(
    network: nn.Module, name: str, seen: Batch, trial: Trial, generator: torch.Generator | None
) -> tuple[LayerStart, ...] | None:
    """Set the weights by a method; None where it does not apply, and nothing is changed."""
    if name == AS_GIVEN:
        return ()
    try:
        with unchanged_if_refused(network), torch.no_grad():
            return _applied(network, name, seen, trial, generator)
    except (TorchliftError, RuntimeError):  # the latter from factors of matrices
        return None


def _applied(
    network: nn.Module, name: str, seen: Batch, trial: Trial, generator: torch.Generator | None
) -> tuple[LayerStart, ...] | None:
    if name == "lsuv":
        y = seen.y[:HELD_OUT]
        layers = lsuv(network, y) if isinstance(network, Chain) else lsuv_of_module(network, y)
        if trial.loss is None:
            return layers
        output = matched_start(network, seen, trial.loss)  # LSUV leaves it as it is, and targets may be in dollars
        return tuple(replace(layer, way="matched") if layer.layer == output else layer for layer in layers)
    if name in ("scaled", "matched"):
        assert trial.loss is not None  # or nobody knows what is far off
        layers = rescale(network, name, select_samples(trial.draw(REMEDY), slice(trial.probe)), trial.loss)
        return layers if any(layer.way == name for layer in layers) else None
    chain = network if isinstance(network, Chain) else twin(network, tuple(seen.y.shape[1:]))
    assert chain is not None and trial.loss is not None  # since `choose`
    values = range_of(seen.y)
    count = trial.output_samples(chain) if name == "identity-fit" else trial.samples(chain)
    count = max(count, FEWEST)
    sample = Sample(seen.y[:count], seen.x[:count], trial.loss)
    if name == "identity":
        layers = identity_start(chain, values, 0.0, generator)
    elif name == "identity-fit":
        layers = identity_fit(chain, values, sample, 0.1 * trial.ridge, generator)
    else:
        layers = layer_wise(chain, sample, trial.ridge, generator)
    if chain is not network:
        chain.load_back(network)
    return layers


def rescale(network: nn.Module, name: str, sample: Batch, loss: Loss) -> tuple[LayerStart, ...]:
    """`scaled_start` or `matched_start`, by name, and what it did to each layer."""
    names = _layers(network)
    if name == "scaled":
        changed = names if scaled_start(network, sample, loss) < 1 else []
    else:
        changed = [matched_start(network, sample, loss)]
    return tuple(LayerStart(layer, name if layer in changed else "kept") for layer in names)


def _loss_after(network: nn.Module, trial: Trial, seen: Batch, unseen: Batch, candidates: int) -> float:
    """The mean loss on held-out samples after the short run, which tells how a start takes its first steps."""
    try:
        trial.run(network, seen, candidates)
    except StepFailure:
        return math.inf
    assert trial.loss is not None  # or there would be one candidate only
    return mean_loss(network, trial.loss, unseen)


def _kept(network: nn.Module, why: str) -> Choice:
    return Choice(AS_GIVEN, why, {}, tuple(LayerStart(name, "kept") for name in _layers(network)))


def _layers(network: nn.Module) -> list[str]:
    """Names of the affine layers."""
    if isinstance(network, Chain):
        return list(weighted(network.layers()))
    return [name for name, part in network.named_modules() if type(part) in AFFINE]
