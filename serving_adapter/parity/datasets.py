"""Data to train and to evaluate parity models with: images, or whatever else a model takes of one size.

| name | what | x | images |
|---|---|---|---|
| `digits` | scikit-learn's digits (they come with it) | pixels / 16 | 1,437 + 360 of 1 x 8 x 8 |
| `cifar10` | CIFAR-10 | (pixels / 255 - 0.5) / 0.25 | 50,000 + 10,000 of 3 x 32 x 32 |
| `cat-dog` | CIFAR-10's cats and dogs, two classes | the same | 10,000 + 2,000 of 3 x 32 x 32 |
| `fashion-mnist` | Fashion-MNIST | (pixels / 255 - 0.286) / 0.353 | 60,000 + 10,000 of 1 x 28 x 28 |
| `fashion-boxes` | one of its items on a noisy ground, and its box | | 20,000 + 4,000 of 1 x 56 x 56 |
| `FILE.npz` | arrays of your own | as it is | |

A file's arrays are `x` (N, *item) FP32 as the deployed model takes it, and may be `y`, `x_test` and `y_test`.
Labels are classes (N,), whole numbers, or what a regressor should answer, (N, d) of FP32. A file with `x`
alone is recorded traffic (ParM, section 4.4): what the deployed model answers stands for the labels, and the
accuracies are then agreement with it. Without `x_test`, every fifth image is kept for the test.

`cifar10.zip` (`train/CLASS/NNNN.jpg`, `test/CLASS/NNNN.jpg`) is looked for in `--data-folder`, by default
`shared/data` beside the project's folder. Its images are decoded once, and the arrays kept in `$RRL_CACHE`
(default: ~/.cache/rrl-tune). Fashion-MNIST's files are looked for in `--data-folder`, and where Debian's
package `dataset-fashion-mnist` puts them.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from serving_adapter.parity import fashion_mnist
from serving_adapter.tensors import UNREADABLE_ARRAYS
from serving_adapter.whole_files import written_whole

CIFAR10_FILE = "cifar10.zip"
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CACHE_VARIABLE = "RRL_CACHE"
PROJECT = Path(__file__).resolve().parents[2]
DIGITS_TEST = 360  # images; the usual fifth
TEST_EVERY = 5
NAMES = ("digits", "cifar10", "cat-dog", "fashion-mnist", "fashion-boxes")
PETS = ("cat", "dog")
FASHION_MEAN, FASHION_DEVIATION = 0.286, 0.353  # of its training pixels / 255
BOXES = {"train": 20_000, "test": 4_000}


class DataError(ValueError):
    """The data cannot be had or read; the message is one sentence for the user."""


class Images(NamedTuple):
    """Inputs (N, *item) FP32 and their labels, or None where nobody labelled them.

    Labels are classes (N,) int64, or numbers (N, d) FP32.
    """

    x: np.ndarray
    y: np.ndarray | None


class Dataset(NamedTuple):
    name: str
    training: Images
    test: Images
    score: str | None = None
    """By which of `scoring.SCORES` answers are judged, where it is not the usual one of such labels."""

    @property
    def outputs(self) -> int | None:
        """How many numbers a model answers, one a class or as many as a label has; None without labels."""
        labels = self.training.y
        if labels is None:
            return None
        return int(labels.max()) + 1 if labels.ndim == 1 else labels.shape[1]


def are_images(x: np.ndarray) -> bool:
    """Whether they are (N, channels, size, size)."""
    return x.ndim == 4 and x.shape[2] == x.shape[3]


def load_dataset(name: str, folder: Path | None = None) -> Dataset:
    """One of `NAMES` or the path of an .npz file; DataError with one sentence where it cannot be had."""
    if name == "digits":
        return _digits()
    folder_of_cifar10 = folder or PROJECT.parent / "shared" / "data"
    if name == "cifar10":
        return _cifar10(name, folder_of_cifar10)
    if name == "cat-dog":
        return _cat_dog(_cifar10(name, folder_of_cifar10))
    if name == "fashion-mnist":
        return _fashion_mnist(_fashion(name, folder))
    if name == "fashion-boxes":
        return _fashion_boxes(_fashion(name, folder))
    if Path(name).suffix == ".npz":
        return _from_file(Path(name))
    raise DataError(f"unknown data {name!r}; give {', '.join(NAMES)} or the path of an .npz file")


def _digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("the data 'digits' needs scikit-learn: pip install scikit-learn") from None
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x = (bunch.images[order, None] / 16).astype(np.float32)
    y = bunch.target[order].astype(np.int64)
    return Dataset(
        "digits", Images(x[DIGITS_TEST:], y[DIGITS_TEST:]), Images(x[:DIGITS_TEST], y[:DIGITS_TEST])
    )


def _cifar10(name: str, folder: Path) -> Dataset:
    path = folder / CIFAR10_FILE
    if not path.is_file():
        raise DataError(f"the data {name!r} needs the file {path}: name the folder of it with --data-folder")
    cached = cache_folder() / f"cifar10-{path.stat().st_size}.npz"
    try:
        with np.load(cached) as file:
            arrays = {name: file[name] for name in ("train_x", "train_y", "test_x", "test_y")}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        arrays = _decode_cifar10(path)
        _keep(cached, arrays)
    return Dataset(
        "cifar10",
        Images(_normalised(arrays["train_x"]), arrays["train_y"]),
        Images(_normalised(arrays["test_x"]), arrays["test_y"]),
    )


def _cat_dog(cifar10: Dataset) -> Dataset:
    """The paper's Cat v. Dog has larger photographs; these are CIFAR-10's."""
    numbers = [CIFAR10_CLASSES.index(name) for name in PETS]

    def pets(part: Images) -> Images:
        assert part.y is not None
        chosen = np.isin(part.y, numbers)
        return Images(part.x[chosen], (part.y[chosen] == numbers[1]).astype(np.int64))

    return Dataset("cat-dog", pets(cifar10.training), pets(cifar10.test))


def _fashion(name: str, folder: Path | None) -> dict[str, np.ndarray]:
    found = fashion_mnist.folder_of(folder)
    if found is None:
        raise DataError(
            f"the data {name!r} needs Fashion-MNIST's four IDX files: install Debian's package of them "
            "with apt-get install dataset-fashion-mnist, or name their folder with --data-folder"
        )
    try:
        return fashion_mnist.read(found)
    except (OSError, ValueError) as error:
        raise DataError(f"the data {name!r} cannot be read: {error}") from None


def _fashion_mnist(arrays: dict[str, np.ndarray]) -> Dataset:
    def part(name: str) -> Images:
        x = arrays[f"{name}_x"][:, np.newaxis].astype(np.float32)
        x -= FASHION_MEAN * 255
        x /= FASHION_DEVIATION * 255
        return Images(x, arrays[f"{name}_y"].astype(np.int64))

    return Dataset("fashion-mnist", part("train"), part("test"))


def _fashion_boxes(arrays: dict[str, np.ndarray]) -> Dataset:
    def part(seed: int, name: str) -> Images:
        x, boxes = fashion_mnist.localization(arrays[f"{name}_x"], BOXES[name], seed)
        x -= 0.15
        x /= 0.25
        return Images(x, boxes)

    return Dataset("fashion-boxes", part(0, "train"), part(1, "test"), "iou")


def cache_folder() -> Path:
    try:
        return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/rrl-tune").expanduser()
    except RuntimeError:
        raise DataError(f"this user has no home to keep data in; set {CACHE_VARIABLE} to a folder") from None


def _normalised(pixels: np.ndarray) -> np.ndarray:
    x = pixels.astype(np.float32)
    x -= 0.5 * 255
    x /= 0.25 * 255
    return x


def _decode_cifar10(path: Path) -> dict[str, np.ndarray]:
    """Pixels (N, 3, 32, 32) uint8 and classes of both parts, in the order of their names."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError("the data 'cifar10' needs Pillow: pip install pillow") from None
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
            for part in ("train", "test"):
                chosen = [name for name in names if name.split("/")[-3] == part]
                pixels = np.empty((len(chosen), 3, 32, 32), np.uint8)
                for i, name in enumerate(chosen):
                    with archive.open(name) as file:
                        pixels[i] = np.asarray(Image.open(file).convert("RGB")).transpose(2, 0, 1)
                classes = [CIFAR10_CLASSES.index(name.split("/")[-2]) for name in chosen]
                arrays |= {f"{part}_x": pixels, f"{part}_y": np.array(classes, np.int64)}
    except (OSError, ValueError, IndexError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not the zip file of CIFAR-10's images: {error}") from None
    if not all(len(array) for array in arrays.values()):
        raise DataError(f"{path} holds no images like train/CLASS/NNNN.jpg and test/CLASS/NNNN.jpg")
    return arrays


def _keep(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Without room or permission nothing is kept, and the next run decodes again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]


def _from_file(path: Path) -> Dataset:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, *UNREADABLE_ARRAYS) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read the data file {path}: {why}") from None
    if "x" not in arrays:
        raise DataError(f"{path} has no array 'x' (N, *item); it has {', '.join(arrays)}")
    everything = _images(path, arrays, "")
    if "x_test" in arrays:
        training, test = everything, _images(path, arrays, "_test")
        if test.x.shape[1:] != training.x.shape[1:]:
            raise DataError(
                f"{path}: the items of 'x' are {training.x.shape[1:]}, those of 'x_test' {test.x.shape[1:]}"
            )
        if training.y is not None and test.y is not None and training.y.shape[1:] != test.y.shape[1:]:
            raise DataError(
                f"{path}: 'y' is {training.y.shape} and 'y_test' {test.y.shape}: both must be of one kind"
            )
        if (training.y is None) != (test.y is None):
            raise DataError(
                f"{path} labels only one of 'x' and 'x_test': give both 'y' and 'y_test', or none"
            )
    else:
        training, test = _split(everything)
    return Dataset(path.stem, training, test)


def _images(path: Path, arrays: dict[str, np.ndarray], part: str) -> Images:
    x, y = arrays[f"x{part}"], arrays.get(f"y{part}")
    if x.ndim < 2 or not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"{path}: 'x{part}' must be (N, *item) of FP32, got {x.shape} of {x.dtype}")
    if len(x) < TEST_EVERY or not np.isfinite(x).all():
        raise DataError(f"{path}: 'x{part}' must have {TEST_EVERY} items or more, and finite numbers only")
    if y is None:
        return Images(x.astype(np.float32), None)
    if (
        y.ndim == 2
        and len(y) == len(x)
        and y.size
        and np.issubdtype(y.dtype, np.floating)
        and np.isfinite(y).all()
    ):
        return Images(x.astype(np.float32), y.astype(np.float32))
    if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise DataError(
            f"{path}: 'y{part}' must be one class from 0 on for each item of 'x{part}', "
            "or finite numbers (N, d)"
        )
    return Images(x.astype(np.float32), y.astype(np.int64))


def _split(images: Images) -> tuple[Images, Images]:
    test = np.arange(len(images.x)) % TEST_EVERY == TEST_EVERY - 1
    x, y = images
    return (
        Images(x[~test], None if y is None else y[~test]),
        Images(x[test], None if y is None else y[test]),
    )
