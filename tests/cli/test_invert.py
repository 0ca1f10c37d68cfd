"""`torchlift invert`: models and data in, images, reports and one-line answers out."""

from __future__ import annotations

import gzip
import json
import shlex
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from torchlift.cli.app import run
from torchlift.io import save_model
from torchlift.networks import lift

Capture = pytest.CaptureFixture[str]


def modules(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 12, 4, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 150))


@pytest.fixture
def images() -> np.ndarray:
    pixels = np.zeros((3, 8, 8), np.uint8)
    pixels[0, 2:6, 2:5], pixels[1, 1:4], pixels[2, :, 4:] = 255, 200, 120
    return pixels


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "net", lift(modules(), (1, 8, 8)))


def ask(capsys: Capture, *arguments: object) -> dict[str, Any]:
    assert run(["invert", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_outputs_are_inverted_and_everything_is_kept(
    capsys: Capture, tmp_path: Path, model: Path, images: np.ndarray
) -> None:
    x = torch.from_numpy(images / 255).float()[:, None]
    with torch.no_grad():
        np.save(tmp_path / "y.npy", modules()(x).numpy())
    out = tmp_path / "out"
    options = ["--weight", "1e-4", "--prior", "total-variation", "box", "--max-steps", "2000", "--tolerance", "1e-7"]
    options += ["--interval", "0.9"]
    assert run(["invert", str(model), str(tmp_path / "y.npy"), *options, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "residual" in text and "total-variation + box, weight 0.0001" in text and "x.npy" in text
    found = np.load(out / "x.npy")
    np.testing.assert_allclose(found, x, atol=0.05)
    with Image.open(out / "images" / "0001.png") as picture:
        np.testing.assert_array_equal(np.array(picture), np.rint(found[1, 0] * 255))
    record = json.loads((out / "invert.json").read_text(encoding="utf-8"))
    assert record["files"] == ["invert.json", "x.npy", "lower.npy", "upper.npy", "images", "figures/inversion.png"]
    lower, upper = (np.load(out / f"{name}.npy") for name in ("lower", "upper"))
    assert (lower <= found).all() and (found <= upper).all() and (lower < upper).any()
    assert all((out / name).exists() for name in record["files"])
    assert record["residual"] < 0.05 and record["psnr"] is None
    assert len(record["images"]) == 3 and len(record["gaps"]) == 2


def test_inputs_can_be_encoded_and_compared(capsys: Capture, tmp_path: Path, model: Path, images: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", images / 255)
    base = [model, tmp_path / "x.npy", "--encode", "--noise-level", "0.02", "--prior", "total-variation", "box"]
    poor = ask(capsys, *base, "--weight", "2", "--max-steps", "200")
    good = ask(capsys, *base, "--weight", "sure", "--max-steps", "200", "--out", tmp_path / "out")
    assert good["psnr"] > poor["psnr"] + 5
    trials = sorted((row["weight"], row["SURE"]) for row in good["trace"]["rows"])
    best = min(range(len(trials)), key=lambda k: trials[k][1])
    assert good["trace"]["rule"] == "sure" and 0 < best < len(trials) - 1  # larger and smaller weights were tried
    assert trials[best - 1][0] < good["weight"] < trials[best + 1][0]
    assert (tmp_path / "out" / "figures" / "weights.png").exists() and (tmp_path / "out" / "truth.npy").exists()
    assert "--out" not in shlex.split(good["command"])
    words = shlex.split(poor["command"])
    assert words[:2] == ["torchlift", "invert"]
    assert ask(capsys, *words[2:])["images"] == poor["images"]  # the command repeats the run: the noise has a seed
    assert good["residual of the noise"] == pytest.approx(0.02 * 150**0.5)
    single = ask(capsys, *base, "--weight", "discrepancy", "--per-image", "--images", "2")
    assert len({row["weight"] for row in single["images"]}) == 2
    assert ask(capsys, *base, "--seed", "1", "--weight", "2", "--max-steps", "200")["images"] != poor["images"]


def test_every_format_holds_the_same_images(capsys: Capture, tmp_path: Path, model: Path, images: np.ndarray) -> None:
    np.save(tmp_path / "flat.npy", images.reshape(3, 64) / 255)
    for folder in ("pictures", "of 16 bits"):
        (tmp_path / folder).mkdir()
    for k, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "pictures" / f"{k}.png")
        Image.fromarray(image.astype(np.uint16) << 8).save(tmp_path / "of 16 bits" / f"{k}.png")
    header = struct.pack(">HBB3I", 0, 8, 3, *images.shape)
    (tmp_path / "some-idx3-ubyte").write_bytes(header + images.tobytes())
    (tmp_path / "some-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
    base = ["--encode", "--max-steps", "20", "--algorithm", "sweep"]
    names = ["flat.npy", "pictures", "of 16 bits", "some-idx3-ubyte", "some-idx3-ubyte.gz"]
    found = [ask(capsys, model, tmp_path / name, *base)["images"] for name in names]
    for other in found[1:]:
        assert [row["objective"] for row in other] == pytest.approx([row["objective"] for row in found[0]], rel=1e-4)
    one = ask(capsys, model, tmp_path / "pictures" / "1.png", *base)["images"]
    assert [row["objective"] for row in one] == pytest.approx([found[0][1]["objective"]], rel=1e-4)


def test_a_function_with_weights_is_the_saved_model(
    capsys: Capture, tmp_path: Path, model: Path, images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from torch import nn\n\n\ndef encoder():\n"
        "    return nn.Sequential(nn.Conv2d(1, 12, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 150))\n"
    )
    (tmp_path / "own_encoder.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    save_file(modules().state_dict(), tmp_path / "weights.safetensors")
    np.save("x.npy", images / 255)
    base = ["x.npy", "--encode", "--max-steps", "20"]
    saved = ask(capsys, model, *base)
    own = ["own_encoder:encoder", *base, "--input-shape", 1, 8, 8]
    made = ask(capsys, *own, "--weights", "weights.safetensors")
    assert [row["objective"] for row in made["images"]] == pytest.approx(
        [row["objective"] for row in saved["images"]], rel=1e-5
    )
    save_file({"0.weight": torch.zeros(2)}, tmp_path / "others.safetensors")
    assert run(["invert", *map(str, own), "--weights", "others.safetensors"]) == 2
    assert "expected 0.weight (12, 1, 4, 4), got 0.weight (2,)" in capsys.readouterr().err


def test_a_start_and_a_decoder(capsys: Capture, tmp_path: Path, model: Path, images: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", images / 255)
    decoder = nn.Sequential(nn.Linear(150, 64), nn.Unflatten(1, (1, 8, 8)))
    with torch.no_grad():
        decoder[0].weight.zero_()  # pyright: ignore[reportCallIssue]
        decoder[0].bias.fill_(0.25)  # pyright: ignore[reportCallIssue]
    save_model(tmp_path / "decoder", lift(decoder))
    np.save(tmp_path / "start.npy", np.full((3, 1, 8, 8), 0.25))
    base = [model, tmp_path / "x.npy", "--encode", "--anchor", "1", "--max-steps", "30"]
    by_file = ask(capsys, *base, "--start", tmp_path / "start.npy")
    by_decoder = ask(capsys, *base, "--decoder", tmp_path / "decoder")
    assert by_file["images"] == by_decoder["images"]
    held = ask(capsys, *base[:-4], "--anchor", "1e4", "--start", tmp_path / "start.npy", "--out", tmp_path / "held")
    assert held["files"][-1] == "figures/inversion.png"
    np.testing.assert_allclose(np.load(tmp_path / "held" / "x.npy"), 0.25, atol=0.01)


def test_vectors_are_not_called_images(capsys: Capture, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = save_model(tmp_path / "net", lift(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6))))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(4, 5)))
    record = ask(capsys, model, tmp_path / "x.npy", "--encode", "--max-steps", "20")
    assert " of 4 samples: " in record["message"] and "image" not in record["message"]
    assert record["psnr"] is None and 0 < record["relative error"] < 1
    assert run(["invert", str(model), str(tmp_path / "x.npy"), "--encode", "--prior", "total-variation"]) == 2
    assert "expected images for total-variation, got inputs of shape (5,). For" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere", "y.npy"], "model nowhere: expected a folder that torchlift train or save_model wrote"),
        (["y.npy", "MODEL"], "got a file. The model comes first, then the data."),
        (["MODEL", "y.npy", "--decoder", "MODEL"], "the model's way back, got one from (1, 8, 8) to (150,)"),
        (["MODEL", "y.npy", "--max-steps", "0"], "torchlift: --max-steps: expected a whole number >= 1, got 0"),
        (["MODEL", "nothing.npy"], "expected a file or folder, got nothing there"),
        (["MODEL", "text.txt"], "a .npy, .png or IDX file"),
        (["MODEL", "broken.npy"], "a readable .npy file"),
        (["MODEL", "broken.png"], "a readable PNG picture"),
        (["MODEL", "words.npy"], "an array of numbers"),
        (["MODEL", "empty"], "a folder of .png files, got none"),
        (["MODEL", "x.npy"], "samples of shape (150,), got an array (3, 8, 8)"),
        (["MODEL", "nan.npy"], "invert y"),
        (["no_such_module:net", "y.npy"], "a function that can be called, got ModuleNotFoundError"),
        (["math:net", "y.npy"], "a function that can be called, got AttributeError"),
        (["collections:OrderedDict", "y.npy"], "returns a Network or an nn.Sequential"),
        (["a b:c", "y.npy"], "which is no folder: expected module:function"),
        (["MODEL", "y.npy", "--weights", "w.safetensors"], "module:function beside --weights"),
        (
            ["MODEL", "y.npy", "--prior", "tv"],
            "total-variation, wavelet, or none alone, got 'tv'. Did you mean 'total-variation'?",
        ),
        (["MODEL", "y.npy", "--prior", "x*l1"], "a factor > 0 and a name, such as 0.1*l1"),
        (["MODEL", "y.npy", "--weight", "-1"], "a finite number >= 0"),
        (["MODEL", "y.npy", "--weight", "best"], "a number or one of sure, discrepancy, lcurve, got 'best'"),
        (["MODEL", "y.npy", "--weight", "sure"], "--weight sure: expected --noise-level beside it, got none"),
        (["MODEL", "y.npy", "--noise-level", "0"], "noise-level"),
        (["MODEL", "y.npy", "--algorithm", "newton"], "got 'newton'. Did you mean 'quasi-newton'?"),
        (["MODEL", "y.npy", "--algorithm", "exact"], "a network of one layer, got 2 layers"),
        (["MODEL", "y.npy", "--anchor", "1"], "a start to be anchored at"),
        (["MODEL", "y.npy", "--start", "a.npy", "--decoder", "b"], "--start or --decoder, got both"),
        (["MODEL", "y.npy", "--images", "0"], "images"),
        (["MODEL", "y.npy", "--interval", "2"], "a number in (0, 1), got 2.0"),
        (["MODEL", "y.npy", "--interval", "0.9"], "--out for the files"),
        (["MODEL"], "DATA"),
    ],
)
def test_bad_input_gets_one_line(
    capsys: Capture,
    tmp_path: Path,
    model: Path,
    images: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", images / 255)
    np.save("y.npy", np.zeros((2, 150)))
    np.save("nan.npy", np.full((2, 150), np.nan))
    np.save("words.npy", np.array(["a"]))
    for name in ("text.txt", "broken.npy", "broken.png"):
        Path(name).write_text("not this", encoding="utf-8")
    Path("empty").mkdir()
    given = [str(model) if word == "MODEL" else word for word in arguments]
    assert run(["invert", *given]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("torchlift: ") and reason in captured.err


def test_vectors_have_a_prior_and_no_pictures(capsys: Capture, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = save_model(tmp_path / "net", lift(nn.Sequential(nn.Linear(4, 6)).double()))
    np.save(tmp_path / "y.npy", np.ones((2, 6)))
    record = ask(capsys, model, tmp_path / "y.npy", "--out", tmp_path / "out", "--algorithm", "exact")
    assert record["prior"] == "tikhonov" and record["files"] == ["invert.json", "x.npy"]
    assert all(row["duality gap"] <= 1e-6 for row in record["images"])
    free = ask(capsys, model, tmp_path / "y.npy", "--prior", "none")
    assert free["residual"] < record["residual"]
