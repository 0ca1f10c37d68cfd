"""Build the bundled photographs, and the folder of pictures that the bundled denoisers learn from.

    python scripts/build_photographs.py --skimage FOLDER --scipy FOLDER --train FOLDER [--out FOLDER]

Both sources are folders of published wheels: `skimage/data` of scikit-image 0.26, `scipy/misc` of SciPy 1.9. All
pictures are in the public domain or CC0 (see the licence note beside the bundled files). Those that are bundled are
never learned from.
"""

from __future__ import annotations

import argparse
import bz2
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from build_digits import write_idx
from torchlift.data import digits
from torchlift.data import images as photographs

#: File and square (left, top, right, bottom) of each bundled picture.
BUNDLED = {
    "astronaut": ("astronaut.png", (0, 0, 512, 512)),
    "cat": ("chelsea.png", (60, 0, 360, 300)),
    "coffee": ("coffee.png", (100, 0, 500, 400)),
}
#: What denoisers learn from, and by how much its size is divided.
TRAIN = {
    "rocket.jpg": 1,
    "camera.png": 1,
    "brick.png": 1,
    "grass.png": 1,
    "gravel.png": 1,
    "hubble_deep_field.jpg": 2,
    "retina.jpg": 3,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--skimage", type=Path, required=True, help="scikit-image's folder `skimage/data`")
    parser.add_argument("--scipy", type=Path, required=True, help="SciPy's folder `scipy/misc`")
    parser.add_argument("--train", type=Path, required=True, help="folder to write the training pictures to")
    parser.add_argument("--out", type=Path, default=digits.BUNDLED, help="folder to write the bundled file to")
    options = parser.parse_args()
    images = torch.stack([bundled(options.skimage / name, box) for name, box in BUNDLED.values()])
    print(write_idx(options.out, photographs.FILE, images))
    options.train.mkdir(parents=True, exist_ok=True)
    for name, factor in TRAIN.items():
        picture = Image.open(options.skimage / name).convert("RGB")
        picture.reduce(factor).save(options.train / f"{Path(name).stem}.png")
    raw = bz2.decompress((options.scipy / "face.dat").read_bytes())
    raccoon = Image.fromarray(np.frombuffer(raw, dtype=np.uint8).reshape(768, 1024, 3))
    raccoon.save(options.train / "raccoon.png")
    raccoon.reduce(2).save(options.train / "raccoon-half.png")


def bundled(path: Path, box: tuple[int, int, int, int]) -> Tensor:
    side = photographs.SIDE
    picture = Image.open(path).convert("RGB").resize((side, side), Image.Resampling.LANCZOS, box)
    return torch.from_numpy(np.array(picture).transpose(2, 0, 1))


if __name__ == "__main__":
    main()
