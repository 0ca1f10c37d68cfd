"""All architectures under all liftings on one task, and how well each one satisfies the unified form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.data import psnr
from torchlift.lab.problem import Images, load_images
from torchlift.lab.reproduction.experiment import Experiment, ExperimentResult, Part, Work
from torchlift.lab.reproduction.restoration import pictures
from torchlift.liftings import MACQP, Bregman, Classical, Contrastive, Conventional, Fenchel, Lifting
from torchlift.networks import (
    DDFB,
    LISTA,
    MLP,
    Chain,
    FirmDenoiser,
    Network,
    Perceptron,
    PrimalDual,
    ResNet,
    ScCP,
    Shallow,
    lift,
)
from torchlift.operators import Identity, dct_matrix
from torchlift.prox import SoftThreshold
from torchlift.report.records import Cell, Claim, Curves, Figure, Series, Table, network_blocks
from torchlift.solvers import LinearisedBCD, ProximalAdam
from torchlift.training import TrainOptions, train

#: Digits at half their resolution: 70 trainings fit into minutes.
SIDE = 14
PIXELS = SIDE * SIDE
IMAGE = (1, SIDE, SIDE)

MU, LEARNING_RATE = 0.1, 3e-3
#: What is shown of the validation images.
SHOWN = 5

#: A network that reads nothing from its input can at best give the mean image. Over it by this much (a fifth less
#: squared error), and over its own start, it has learnt something.
MARGIN = 1.0
#: Two orders of summing n products differ by at most n roundings; the longest sums have as many terms as pixels.
ROUNDING = PIXELS * torch.finfo(torch.float32).eps

NAMES = ("backward sweep", "Conventional", "MACQP", "Classical", "Fenchel", "Contrastive", "Bregman")
"""The default of `train`, then all liftings."""

Row = Mapping[str, Any]


def networks(seed: int) -> dict[str, Network]:
    """One small network of each kind for images of 14 × 14 pixels, from its default start."""
    generator = torch.Generator().manual_seed(seed)
    forward = Identity(IMAGE)
    return {
        "Perceptron": Perceptron(PIXELS, PIXELS, generator=generator),
        "Shallow": Shallow(PIXELS, [128, 128], PIXELS, output_bias=True, generator=generator),
        "MLP": MLP([PIXELS] * 4, SoftThreshold(0.02), generator=generator),
        "ResNet": ResNet(PIXELS, [128] * 3, PIXELS, generator=generator),
        "LISTA": LISTA(forward, dct_matrix(SIDE, SIDE).T.contiguous(), 3),
        "PrimalDual": PrimalDual(forward, 0.7 * dct_matrix(SIDE, SIDE), 3),
        "convolutional": lift(_convolutions(seed), IMAGE),
        "DDFB": DDFB(IMAGE, 3, features=8, size=3, generator=generator),
        "ScCP": ScCP(IMAGE, 3, features=8, size=3, generator=generator),
        "FirmDenoiser": FirmDenoiser(IMAGE, 3, features=8, size=3, generator=generator),
    }


def _convolutions(seed: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
            nn.Conv2d(8, 1, 3, padding=1),
        )


def liftings() -> dict[str, Lifting | None]:
    """The liftings by their names in the table; None is the default of `train`."""
    chosen = (None, Conventional(), MACQP(MU), Classical(MU), Fenchel(MU), Contrastive(MU), Bregman(MU))
    return dict(zip(NAMES, chosen, strict=True))


@torch.no_grad()
def residuals(network: Network, images: Tensor) -> dict[str, float | None]:
    """Relative errors of M u = V z, of z = σ(W u + b), and of the output against plain torch's."""
    form, inputs = network.operators(), images.reshape(len(images), *network.in_shape)
    states = network.states(inputs)
    before = (v if b is None else v + b for v, b in zip(form.W.forward(states.u), form.b, strict=True))
    active = [sigma(v) for sigma, v in zip(form.activations, before, strict=True)]
    plain = network.to_sequential()(inputs) if isinstance(network, Chain | Shallow) else None
    return {
        "coupling": _relative(form.M.forward(states.u), form.V.forward(states.z)),
        "activation": _relative(active, states.z),
        "plain": None if plain is None else _relative([states.output], [plain]),
    }


def _relative(left: Iterable[Tensor], right: Sequence[Tensor]) -> float:
    """‖left − right‖/‖right‖ over all blocks."""
    squares = sum(float((a - b).double().square().sum()) for a, b in zip(left, right, strict=True))
    return math.sqrt(squares / sum(float(b.double().square().sum()) for b in right))


@dataclass(frozen=True)
class Budget:
    """How much is done.

    Arguments:
        images, held_out: for training and validation.
        steps: of every training, on the full batch.
        seconds: after which it ends in any case. Only `Contrastive` gets there: each of its steps minimises over the
            lifted variables twice, which takes seconds for the deeper networks.
        kinds: of networks; all where there are none.
    """

    images: int
    held_out: int
    steps: int
    seconds: float
    kinds: Sequence[str] = ()


TINY = Budget(20, 10, 2, 60.0, ("Perceptron", "MLP"))
#: 60 pairs at 2 to 6 seconds, and 10 at 45.
SMALL = Budget(500, 200, 150, 45.0)
PAPER = Budget(5000, 500, 2000, 3600.0)


def learn(network: Network, lifting: Lifting | None, images: Images, budget: Budget, seed: int) -> Part:
    """One training on the full batch, deterministic as in the paper; where it is refused, with the reason.

    Lifted variables of their own move by proximal Adam together with the parameters. The others have
    none: their parameters follow backward sweeps or back-propagation with steps of their own length.
    """
    free = lifting is not None and not lifting.hard and not lifting.contrastive
    solver = LinearisedBCD(ProximalAdam(LEARNING_RATE)) if free else None
    y, x, held_out_y, held_out_x = _shaped(network, images)
    with torch.no_grad():
        before = network(held_out_y)
    try:
        result = train(
            network, (y, x), validation=(held_out_y, held_out_x), lifting=lifting, solver=solver,
            batch_size="full", steps=budget.steps, time_limit=budget.seconds, weights="keep", metrics=("psnr",),
            seed=seed, progress=False, options=TrainOptions(evaluate_every=max(1, budget.steps // 15)),
        )  # fmt: skip
    except (InvalidValueError, InvalidTypeError) as error:
        return {}, {"refused": str(error)}
    with torch.no_grad():
        after = result.raise_if_failed().network(held_out_y)
    at, values = result.history.column("psnr")
    return {"images": after[:SHOWN].flatten(1).clamp(0, 1)}, {
        "refused": None,
        "start": _mean_psnr(before, held_out_x),
        "psnr": _mean_psnr(after, held_out_x),
        "made": result.steps,
        "milliseconds": 1e3 * result.seconds / max(result.steps, 1),
        "steps": at,
        "values": values,
    }


def _shaped(network: Network, images: Images) -> list[Tensor]:
    """Inputs and targets, for training and for validation, in the shapes that a network wants."""
    pairs = ((images.y, images.x), (images.validation_y, images.validation_x))
    shapes = (network.in_shape, network.out_shape)
    return [tensor.reshape(-1, *shape) for pair in pairs for tensor, shape in zip(pair, shapes, strict=True)]


def _mean_psnr(images: Tensor, x: Tensor) -> float:
    return float(psnr(images, x).mean())


@dataclass(frozen=True)
class Architectures(Experiment):
    """Every network with every lifting."""

    name = "architectures"
    minutes = 15.0
    title = "All architectures under all liftings"
    about = "denoising by every network with every lifting, and the unified form checked on all of them (ours)"

    def run(self, work: Work) -> ExperimentResult:
        budget: Budget = work.choose(TINY, SMALL, PAPER)
        kinds = budget.kinds or tuple(networks(work.seed))
        images = load_images("denoising", budget.images, budget.held_out, work.seed, SIDE)
        chosen = liftings()
        work.expect(len(kinds) * (1 + len(chosen)))
        forms: dict[str, Row] = {}
        results: dict[tuple[str, str], Row] = {}
        restored: dict[str, Tensor] = {}
        for kind in kinds:
            _, forms[kind] = work.part(f"form of {kind}", partial(_form, kind, images.y[:50], work.seed))
            for name, lifting in chosen.items():
                make = partial(_learn, kind, lifting, images, budget, work.seed)
                tensors, results[kind, name] = work.part(f"{kind}, {name}", make)
                if name == "Bregman" and "images" in tensors:
                    restored[kind] = tensors["images"]
        y, x = images.validation_y, images.validation_x
        mean, noisy = _mean_psnr(images.x.mean(0, keepdim=True).expand_as(x), x), float(images.degraded.mean())
        claims = [
            form_claim(forms),
            *work.decided([training_claim(results, mean, budget.steps)]),
            defined_claim(results),
        ]
        figures: list[Figure] = [
            _psnr_table(results, mean, noisy, budget.steps),
            _time_table(results),
            *_stopped(results, budget),
            _form_table(forms),
            *_reasons(results),
            *(_curves(kind, results) for kind in kinds),
            pictures(
                "restored",
                "Validation images restored by each network, trained with the Bregman lifting",
                {"clean": x[:SHOWN], "noisy": y[:SHOWN].clamp(0, 1), **restored},
                "clean",
            ),
            *(network_blocks(networks(work.seed)[kind], f"blocks-{kind.lower()}") for kind in kinds),
        ]
        best = max((row["psnr"], *place) for place, row in results.items() if not row["refused"])
        summary = (
            f"{len(kinds)} architectures, each trained by {len(chosen)} methods with {budget.images} noisy digits of "
            f"{SIDE} × {SIDE} pixels in {budget.steps} steps on the full batch. Validation PSNR of the noisy images: "
            f"{noisy:.2f} dB, of the mean image: {mean:.2f} dB; best: {best[0]:.2f} dB by {best[1]} with {best[2]}. "
            "Steps are equal, not tuned: the table says what trains, not what trains best."
        )
        configuration = {
            "task": "denoising, standard deviation 0.15",
            "images": budget.images,
            "validation images": budget.held_out,
            "pixels": PIXELS,
            "steps": budget.steps,
            "seconds at most": budget.seconds,
            "batch": "full",
            "mu": MU,
            "solver of free lifted variables": f"LinearisedBCD(ProximalAdam({LEARNING_RATE}))",
            "solver without": "sweeps, RelativeStep()",
            "threads": torch.get_num_threads(),
        }
        return ExperimentResult(summary, claims, figures, configuration)


def _form(kind: str, images: Tensor, seed: int) -> Part:
    network = networks(seed)[kind]
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return {}, {"parameters": parameters, "depth": network.depth, **residuals(network, images)}


def _learn(kind: str, lifting: Lifting | None, images: Images, budget: Budget, seed: int) -> Part:
    return learn(networks(seed)[kind], lifting, images, budget, seed)


# -- claims ---------------------------------------------------------------------------------------------------------


def form_claim(forms: Mapping[str, Row]) -> Claim:
    """All residuals at the level of rounding."""
    residual = {
        (kind, name): row[name]
        for kind, row in forms.items()
        for name in ("coupling", "activation", "plain")
        if row[name] is not None
    }
    worst = max(residual, key=lambda place: residual[place])
    measured = (
        f"largest relative residual {residual[worst]:.1e} ({worst[0]}, {worst[1]}) of {len(residual)} in single "
        f"precision; rounding allows {ROUNDING:.1e}"
    )
    held = all(value <= ROUNDING for value in residual.values())
    return Claim.of("One form, M u = V z and z = σ(W u + b), covers all architectures.", measured, held)


def learnt(row: Row, mean: float) -> bool:
    """Better than where it started, and than what can be done without looking at the input."""
    return row["psnr"] > row["start"] and row["psnr"] >= mean + MARGIN


def training_claim(results: Mapping[tuple[str, str], Row], mean: float, steps: int) -> Claim:
    """Pairs that had all their steps decide; one that time cut short may still have learnt, but has not failed."""
    defined = {place: row for place, row in results.items() if not row["refused"]}
    late = {place: row for place, row in defined.items() if not learnt(row, mean)}
    failed = [f"{kind} with {name}" for (kind, name), row in late.items() if row["made"] >= steps]
    short = [f"{kind} with {name}" for (kind, name), row in late.items() if row["made"] < steps]
    measured = (
        f"{len(defined) - len(late)} of {len(defined)} pairs end over their start and over {mean + MARGIN:.2f} dB, "
        f"{MARGIN:g} dB over the mean image"
    )
    measured += f"; not: {', '.join(failed)}" if failed else ""
    measured += f"; not in the time they had: {', '.join(short)}" if short else ""
    held = False if failed else None if short else True
    return Claim.of("Every lifting trains every architecture.", measured, held)


def defined_claim(results: Mapping[tuple[str, str], Row]) -> Claim:
    refused = [f"{kind} with {name}" for (kind, name), row in results.items() if row["refused"]]
    measured = f"{len(results) - len(refused)} of {len(results)} pairs are accepted"
    measured += f"; refused: {', '.join(refused)}" if refused else ""
    statement = "Every lifting is defined for every architecture."
    return Claim.of(statement, measured, not refused, "torchlift")


# -- figures ---------------------------------------------------------------------------------------------------------


def _grid(results: Mapping[tuple[str, str], Row], field: str) -> list[list[Cell]]:
    kinds = dict.fromkeys(kind for kind, _ in results)
    return [[kind, *(results[kind, name].get(field) for name in NAMES)] for kind in kinds]


def _psnr_table(results: Mapping[tuple[str, str], Row], mean: float, noisy: float, steps: int) -> Table:
    starts = {kind: row["start"] for (kind, _), row in results.items() if not row["refused"]}
    rows = [[row[0], starts.get(str(row[0])), *row[1:]] for row in _grid(results, "psnr")]
    columns = ["network", "at the start", *NAMES]
    note = (
        f"dB after {steps} steps. The noisy images have {noisy:.2f} dB, the mean image {mean:.2f} dB. "
        "A dash: refused, see the reasons."
    )
    formats = ["", *[".2f"] * (1 + len(NAMES))]
    return Table("psnr", "Validation PSNR by network and lifting", columns, rows, formats, note=note)


def _time_table(results: Mapping[tuple[str, str], Row]) -> Table:
    note = "Milliseconds on the full batch, evaluations left out. Contrastive solves two problems in z per step."
    columns, formats = ["network", *NAMES], ["", *[".1f"] * len(NAMES)]
    return Table("times", "Time per step (ms)", columns, _grid(results, "milliseconds"), formats, note=note)


def _stopped(results: Mapping[tuple[str, str], Row], budget: Budget) -> list[Table]:
    """Trainings that the time limit ended."""
    rows = [
        [kind, name, row["made"]]
        for (kind, name), row in results.items()
        if not row["refused"] and row["made"] < budget.steps
    ]
    title = f"Trainings that had fewer than {budget.steps} steps, because {budget.seconds:g} s were over"
    return [Table("stopped", title, ["network", "lifting", "steps"], rows)] if rows else []


def _form_table(forms: Mapping[str, Row]) -> Table:
    columns = ["network", "parameters", "layers", "‖Mu − Vz‖/‖Vz‖", "‖σ(Wu + b) − z‖/‖z‖", "‖N − plain‖/‖plain‖"]
    fields = ("parameters", "depth", "coupling", "activation", "plain")
    rows = [[kind, *(row[name] for name in fields)] for kind, row in forms.items()]
    note = "Single precision. Plain: the same network as an nn.Sequential; unrolled networks are none."
    return Table("form", "Residuals of the unified form", columns, rows, ["", "", "", *[".1e"] * 3], note=note)


def _reasons(results: Mapping[tuple[str, str], Row]) -> list[Table]:
    rows = [[kind, name, row["refused"]] for (kind, name), row in results.items() if row["refused"]]
    return [Table("refused", "Pairs that are not defined", ["network", "lifting", "reason"], rows)] if rows else []


def _curves(kind: str, results: Mapping[tuple[str, str], Row]) -> Curves:
    rows = {name: results[kind, name] for name in NAMES if not results[kind, name]["refused"]}
    series = [Series(name, row["steps"], row["values"], dashed=name == "Conventional") for name, row in rows.items()]
    return Curves(f"psnr-{kind.lower()}", f"{kind}: validation PSNR", "step", "PSNR (dB)", series)
