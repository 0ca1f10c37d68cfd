"""Experiment `inversion`: the paper's encoder of digits, inverted at three stages of its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchlift.data import psnr, ssim
from torchlift.functions.priors import TotalVariation
from torchlift.inversion import invert
from torchlift.lab.benchmarks import autoencoder
from torchlift.lab.benchmarks.autoencoder import LEVELS, Autoencoder, Recipe
from torchlift.lab.benchmarks.inversion import NOISE, Contestant, Sample, choose, codes, held_out
from torchlift.lab.benchmarks.inversion import Scale as Numbers
from torchlift.lab.reproduction.confidence import Interval, confidence, every
from torchlift.lab.reproduction.experiment import Experiment, ExperimentResult, Part, Work
from torchlift.lab.reproduction.printed_inversion import printed_inversion
from torchlift.lab.reproduction.restoration import pictures
from torchlift.report.records import Claim, Curves, Figure, Pictures, Series, Table

#: The paper's weights of total variation, for the severely and the moderately under-trained and the trained encoder.
WEIGHTS = (8e-2, 6e-2, 7e-2)

DECODER, CLAMPED = "decoder", "decoder, clamped to [0, 1]"
PRINTED, MENDED = "paper, as printed", "paper, misprint corrected"
CORRECTED = "paper, by our sweeps"
SWEEP, WARM = "ours, from black", "ours, from the decoder"
FOUND = (PRINTED, MENDED, CORRECTED, SWEEP, WARM)
METHODS = (DECODER, CLAMPED, *FOUND)

#: An approximate inverse explains nine tenths of what distinguishes images: its squared error is at most this share
#: of that of the mean training image, which is the best answer of somebody who does not look at the code.
SHARE = 0.1


@dataclass(frozen=True)
class Plan:
    """How much is done.

    Arguments:
        recipe: how the autoencoder is trained.
        levels: losses at which it is kept.
        images, choice: reported images, and others on which our weights are chosen.
        steps, inner_steps: of the printed algorithm; `steps` also of our sweeps with the paper's settings.
        sweeps, warm_sweeps: of ours.
        reach: of the search for our weights, in factors of 2.
    """

    recipe: Recipe
    levels: tuple[float, ...] = LEVELS
    images: int = 100
    choice: int = 32
    steps: int = 500
    inner_steps: int = 5
    sweeps: int = 300
    warm_sweeps: int = 40
    reach: int = 8


def plan(work: Work) -> Plan:
    """Scale small trains on the bundled digits, with ten times the paper's learning rate, to the paper's losses.

    That takes about 30,000 steps instead of 80,000.
    """
    seed = work.seed
    if work.scale == "tiny":
        hasty = Recipe("digits", 1e-3, 64, seed, window=5, max_epochs=10)
        return Plan(
            hasty, (0.16, 0.14, 0.12), images=5, choice=2, steps=4, inner_steps=2, sweeps=4, warm_sweeps=3, reach=1
        )
    if work.scale == "small":
        return Plan(Recipe("digits", 1e-3, 64, seed, max_epochs=2000))
    return Plan(Recipe("mnist", 1e-4, 64, seed), inner_steps=1000)


class Inversion(Experiment):
    """Decoder against lifted inversion on noisy codes."""

    name: ClassVar[str] = "inversion"
    minutes: ClassVar[float] = 5.0
    title: ClassVar[str] = "Inversion of an encoder of digits"
    about: ClassVar[str] = "decoder against lifted inversion of noisy codes, at three training losses (three figures)"

    def run(self, work: Work) -> ExperimentResult:
        todo = plan(work)
        work.expect(1 + len(todo.levels) * len(FOUND))
        trace, training = work.part("autoencoder", lambda: _train(work, todo))
        models = _models(work, todo)
        report, choice = held_out(todo.recipe.data, Numbers(images=todo.images, choice=todo.choice))
        mean = todo.recipe.images().mean(0, keepdim=True)
        levels = []
        for model, weight in zip(models, WEIGHTS, strict=True):
            sample = codes(model, report, NOISE, work.seed)
            tuning = codes(model, choice, NOISE, work.seed + 1)
            assert sample.guess is not None
            images, weights = {DECODER: sample.guess, CLAMPED: sample.guess.clamp(0, 1)}, {}
            for method in FOUND:
                tensors, record = work.part(
                    f"loss {model.level:g}, {method}",
                    lambda name=method, rho=weight, a=sample, b=tuning: _invert(name, a, b, rho, todo),
                )
                images[method], weights[method] = tensors["images"], record
            levels.append(Level.of(model, sample, images, weights, mean))
        claims = work.decided(judge(levels, as_published=work.scale == "paper"))
        summary = _summary(levels)
        configuration = {**asdict(todo), "noise": NOISE, "weights": WEIGHTS, "training": training["levels"]}
        figures = [
            _table(levels),
            *_curves(levels),
            _training(trace, todo.recipe),
            *(_pictures(level) for level in levels),
        ]
        return ExperimentResult(summary, claims, figures, configuration)


def _train(work: Work, todo: Plan) -> Part:
    """Where the levels were reached, and the loss on the way there."""
    models = _models(work, todo)
    keys = ("loss", "epoch", "steps")
    last = autoencoder.losses(work.training_folder("autoencoder"), min(todo.levels)).double()
    size = max(1, len(last) // 200)
    means = last[: len(last) // size * size].view(-1, size).mean(1)
    ends = size * torch.arange(1, len(means) + 1)
    levels = [{"level": model.level, **{key: model.record[key] for key in keys}} for model in models]
    return {"steps": ends, "losses": means}, {"levels": levels}


def _models(work: Work, todo: Plan) -> list[Autoencoder]:
    """Trained now, from the last checkpoint, or long ago."""

    def report(epoch: int, loss: float) -> None:
        work.tell(f"autoencoder: epoch {epoch}, loss {loss:.3g}")

    return autoencoder.trained(todo.levels, todo.recipe, report, work.training_folder("autoencoder"))


def _invert(method: str, sample: Sample, tuning: Sample, rho: float, todo: Plan) -> Part:
    """The images that one method finds, and its weights: the paper's, or ours chosen on other images."""
    network, y = sample.network, sample.y
    if method in (PRINTED, MENDED):
        options: dict[str, Any] = {"steps": todo.steps, "inner_steps": todo.inner_steps}
        images = printed_inversion(network, y, rho, corrected=method == MENDED, **options)
        return {"images": images}, {"weight": rho, "anchor": 0.0}
    if method == CORRECTED:
        options = {"algorithm": "sweep", "mu": 1.0, "max_steps": todo.steps, "tolerance": 0.0}
        images = invert(network, y, TotalVariation(), rho, **options)
        return {"images": images.x}, {"weight": rho, "anchor": 0.0}
    steps = todo.warm_sweeps if method == WARM else todo.sweeps
    ours = Contestant(method, {"algorithm": "sweep", "max_steps": steps}, warm=method == WARM)
    weight, anchor = choose(ours, tuning, todo.reach)
    return {"images": ours.run(sample, weight, anchor)}, {"weight": weight, "anchor": anchor}


@dataclass(frozen=True, eq=False)
class Level:
    """What was found at one loss: one number per image and method.

    Arguments:
        loss: of the training.
        psnr, ssim: of every method.
        error: squared errors.
        spread: squared distances of the images from the mean training image.
        misfit: ‖Enc(x) − y‖/‖y‖.
        weights: of the methods that have any.
        truth, images: the images themselves.
    """

    loss: float
    psnr: Mapping[str, Tensor]
    ssim: Mapping[str, Tensor]
    error: Mapping[str, Tensor]
    spread: Tensor
    misfit: Mapping[str, Tensor]
    weights: Mapping[str, Mapping[str, float]]
    truth: Tensor
    images: Mapping[str, Tensor]

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: Autoencoder,
        sample: Sample,
        images: Mapping[str, Tensor],
        weights: Mapping[str, Mapping[str, float]],
        mean: Tensor,
    ) -> Level:
        x, y = sample.x, sample.y
        return cls(
            model.level,
            {name: psnr(batch, x) for name, batch in images.items()},
            {name: ssim(batch, x) for name, batch in images.items()},
            {name: _square(batch - x) for name, batch in images.items()},
            _square(x - mean),
            {name: (model.encoder(batch) - y).norm(dim=1) / y.norm(dim=1) for name, batch in images.items()},
            weights,
            x,
            images,
        )

    def gain(self, method: str, over: str = DECODER) -> Interval:
        """PSNR, image by image, over that of another method."""
        return confidence(self.psnr[method] - self.psnr[over])

    def similarity(self, method: str) -> Interval:
        """SSIM, image by image, over that of the decoder."""
        return confidence(self.ssim[method] - self.ssim[DECODER])

    def inverts(self, method: str) -> bool | None:
        """Whether the squared error is at most SHARE of that of the mean image."""
        return confidence(SHARE * self.spread - self.error[method]).above(0)


def judge(levels: list[Level], *, as_published: bool = True) -> list[Claim]:
    """The paper's claims and ours. An interval of 95 % that holds the limit leaves a claim open.

    Arguments:
        as_published: whether the autoencoder was trained like the paper's. What its weights do to another one cannot
            refute it.
    """

    def of_weights(held: bool | None) -> bool | None:
        return None if held is False and not as_published else held

    def shares(method: str) -> str:
        return "squared error over that of the mean image: " + _listed(
            levels, lambda level: f"{float(level.error[method].sum() / level.spread.sum()):.3f}"
        )

    best, others = levels[-1], levels[:-1]
    lost = [confidence(best.psnr[CORRECTED] - level.psnr[CORRECTED]) for level in others]
    inverts = {method: every(level.inverts(method) for level in levels) for method in (PRINTED, CORRECTED, SWEEP)}
    settings = {
        PRINTED: ("With the updates as printed", inverts[PRINTED]),
        CORRECTED: ("With corrected updates", of_weights(inverts[CORRECTED])),
        SWEEP: ("With our settings, from black", inverts[SWEEP]),
    }
    return [
        *(
            Claim.of(
                f"{words}, lifted inversion finds an approximate inverse of the encoder at all three losses "
                f"(at most {SHARE:.0%} of the mean image's squared error)",
                shares(method),
                held,
                "torchlift" if method == SWEEP else "paper",
            )
            for method, (words, held) in settings.items()
        ),
        Claim.of(
            "Under-trained encoders are inverted less accurately than the nearly converged one",
            f"PSNR at loss {best.loss:g} minus PSNR at "
            + "; ".join(
                f"{level.loss:g}: {interval.text('+.2f')} dB" for level, interval in zip(others, lost, strict=True)
            ),
            of_weights(every(interval.above(0) for interval in lost)),
        ),
        Claim.of(
            "Lifted inversion with the paper's settings, corrected, gives better images than the decoder",
            "PSNR gain: "
            + _listed(levels, lambda level: level.gain(CORRECTED).text("+.2f") + " dB")
            + "; SSIM gain: "
            + _listed(levels, lambda level: level.similarity(CORRECTED).text("+.3f")),
            of_weights(
                every(
                    gain.above(0) for level in levels for gain in (level.gain(CORRECTED), level.similarity(CORRECTED))
                )
            ),
        ),
        *(
            Claim.of(
                f"Inversion that starts from the decoder and is anchored there has a larger PSNR than the {over}",
                "gain: " + _listed(levels, lambda level, base=over: level.gain(WARM, base).text("+.2f") + " dB"),
                every(level.gain(WARM, over).above(0) for level in levels),
                "torchlift",
            )
            for over in (DECODER, CLAMPED)
        ),
        Claim.of(
            "Inversion that starts from the decoder and is anchored there has a larger SSIM than the decoder",
            "gain: " + _listed(levels, lambda level: level.similarity(WARM).text("+.3f")),
            every(level.similarity(WARM).above(0) for level in levels),
            "torchlift",
        ),
    ]


def _listed(levels: list[Level], text: Any) -> str:
    return "; ".join(f"{level.loss:g}: {text(level)}" for level in levels)


def _summary(levels: list[Level]) -> str:
    gains = _listed(levels, lambda level: level.gain(WARM).text("+.2f") + " dB")
    paper = _listed(levels, lambda level: level.gain(CORRECTED).text("+.2f") + " dB")
    return (
        f"The encoder of an autoencoder of digits was inverted from codes with noise {NOISE:g}, for "
        f"{len(levels[0].truth)} images that the training did not see. PSNR over that of the decoder, by training "
        f"loss: {paper} with the paper's weights and corrected updates, {gains} with our settings. Intervals of 95 % "
        "are over images; there is one autoencoder and one draw of the noise."
    )


def _table(levels: list[Level]) -> Table:
    rows = []
    for level in levels:
        for method in METHODS:
            weights = level.weights.get(method, {})
            quality, structure = confidence(level.psnr[method]), confidence(level.ssim[method])
            gain = level.gain(method)
            rows.append(
                [
                    *(level.loss, method, weights.get("weight"), weights.get("anchor")),
                    *(*quality, *gain, *structure, float(level.misfit[method].mean())),
                ]
            )
    columns = {"training loss": "g", "method": "", "weight": ".3g", "anchor": ".3g"}
    for quantity, form in (("PSNR (dB)", ".2f"), ("gain (dB)", "+.2f"), ("SSIM", ".3f")):
        columns |= dict.fromkeys((quantity, f"{quantity}, from", f"{quantity}, to"), form)
    note = (
        "Mean over images with its interval of 95 %; gains are over the decoder. The paper's weights are its own, "
        "ours were chosen on other images. Misprint corrected: the paper's algorithm and step sizes with 1/(1 + τ) in "
        "front of the auxiliary step. By our sweeps: the paper's objective and weights, by our backward sweeps."
    )
    return Table.of("quality", "Quality of the images", {**columns, "‖Enc(x) − y‖/‖y‖": ".3f"}, rows, note)


def _curves(levels: list[Level]) -> list[Figure]:
    losses = [level.loss for level in levels]
    figures: list[Figure] = []
    for name, label in (("psnr", "PSNR (dB)"), ("ssim", "SSIM")):
        series = []
        for method in METHODS:
            mean, low, high = zip(*(confidence(getattr(level, name)[method]) for level in levels), strict=True)
            series.append(Series(method, losses, mean, low, high, dashed=method in (DECODER, CLAMPED)))
        title = f"{label} by training loss"
        figures.append(Curves(f"{name}-by-loss", title, "training loss", label, series, x_log=True))
    return figures


def _training(trace: Mapping[str, Tensor], recipe: Recipe) -> Curves:
    series = [Series("training loss", trace["steps"].tolist(), trace["losses"].tolist())]
    data = "the full MNIST" if recipe.data == "mnist" else "5,000 digits"
    note = f"Adam with learning rate {recipe.learning_rate:g} and batches of {recipe.batch_size}, on {data}."
    title = "Training of the autoencoder"
    return Curves("training", title, "steps", "mean squared error", series, y_log=True, note=note)


def _pictures(level: Level) -> Pictures:
    images = {"input": level.truth, **level.images}
    rows = {name: images[name][:5, 0] for name in ("input", *METHODS) if name != CLAMPED}
    name = f"images-{level.loss:g}".replace(".", "-")
    return pictures(name, f"Five images at training loss {level.loss:g}", rows, "input")


def _square(difference: Tensor) -> Tensor:
    return difference.flatten(1).double().square().sum(1)
