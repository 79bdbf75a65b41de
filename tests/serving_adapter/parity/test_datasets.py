"""Images for training: where they come from, and files that are refused."""

from __future__ import annotations

import gzip
import io
import zipfile

import numpy as np
import pytest

from serving_adapter.parity import fashion_mnist
from serving_adapter.parity.datasets import (
    CACHE_VARIABLE,
    CIFAR10_CLASSES,
    DataError,
    are_images,
    load_dataset,
)
from tests.support.fashion_files import idx, write_fashion_files

X = np.arange(10 * 4, dtype=np.float32).reshape(10, 1, 2, 2)
Y = np.arange(10) % 3


def written(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_digits_are_the_same_every_time_and_between_0_and_1():
    pytest.importorskip("sklearn")
    first, again = load_dataset("digits"), load_dataset("digits")
    assert (first.training.x.shape[1:], first.outputs) == ((1, 8, 8), 10)
    assert (len(first.training.x), len(first.test.x)) == (1437, 360)
    assert np.array_equal(first.test.x, again.test.x)
    assert first.training.x.dtype == np.float32
    assert (first.training.x.min(), first.training.x.max()) == (0.0, 1.0)


def test_recorded_traffic_has_no_labels_and_keeps_every_fifth_image_for_the_test(tmp_path):
    data = load_dataset(written(tmp_path / "traffic.npz", x=X))
    assert data.training.y is None
    assert data.test.y is None
    assert data.outputs is None
    assert np.array_equal(data.test.x, X[[4, 9]])
    assert len(data.training.x) == 8


def test_a_file_may_bring_labels_and_its_own_test(tmp_path):
    data = load_dataset(written(tmp_path / "own.npz", x=X, y=Y, x_test=X[:5], y_test=Y[:5]))
    assert data.outputs == 3
    assert data.training.y is not None
    assert data.test.y is not None
    assert np.array_equal(data.training.y, Y)
    assert np.array_equal(data.test.y, Y[:5])


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"images": X}, "has no array 'x'"),
        ({"x": X[:, 0, 0, 0]}, "'x' must be .N, .item. of FP32"),
        ({"x": X.astype(int)}, "'x' must be .N, .item. of FP32"),
        ({"x": X[:2]}, "must have 5 items or more"),
        ({"x": np.where(X == 3, np.nan, X)}, "finite numbers only"),
        ({"x": X, "y": Y[:3]}, "'y' must be one class from 0 on for each item"),
        ({"x": X, "y": Y - 1}, "'y' must be one class from 0 on for each item"),
        ({"x": X, "y": Y / 2}, "'y' must be one class from 0 on for each item"),
        ({"x": X, "y": np.full((10, 2), np.nan)}, "or finite numbers .N, d."),
        ({"x": X, "y": Y, "x_test": X, "y_test": np.zeros((10, 2))}, "both must be of one kind"),
        ({"x": X, "x_test": X[:, :, :1, :1]}, "the items of 'x' are .1, 2, 2., those of 'x_test' .1, 1, 1."),
        ({"x": X, "y": Y, "x_test": X}, "labels only one of 'x' and 'x_test'"),
    ],
)
def test_arrays_that_cannot_be_trained_with_are_refused(tmp_path, arrays, sentence):
    with pytest.raises(DataError, match=sentence):
        load_dataset(written(tmp_path / "data.npz", **arrays))


def test_items_need_not_be_images(tmp_path):
    data = load_dataset(written(tmp_path / "data.npz", x=X[..., :1]))
    assert not are_images(data.training.x)
    assert load_dataset(written(tmp_path / "flat.npz", x=X.reshape(len(X), -1))).training.x.ndim == 2


def test_pickled_objects_are_not_loaded(tmp_path):
    path = written(tmp_path / "data.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="cannot read the data file"):
        load_dataset(path)


def test_what_is_no_data_is_refused(tmp_path, monkeypatch):
    (tmp_path / "broken.npz").write_bytes(b"PK no zip")
    with pytest.raises(DataError, match="cannot read the data file"):
        load_dataset(str(tmp_path / "broken.npz"))
    with pytest.raises(DataError, match=r"cannot read the data file \S*none\.npz: No such file"):
        load_dataset(str(tmp_path / "none.npz"))
    with pytest.raises(DataError, match=r"unknown data 'mnist'; give digits, cifar10, .* or the path"):
        load_dataset("mnist")
    monkeypatch.setattr(fashion_mnist, "INSTALLED", tmp_path)
    for name in ("fashion-mnist", "fashion-boxes"):
        with pytest.raises(
            DataError, match=f"the data .{name}. needs .* with apt-get install dataset-fashion-mnist"
        ):
            load_dataset(name, tmp_path)
    with pytest.raises(
        DataError, match=r"needs the file .*cifar10\.zip: name the folder of it with --data-folder"
    ):
        load_dataset("cifar10", tmp_path)


@pytest.fixture
def cifar10_folder(tmp_path, monkeypatch):
    """Two images of each class and part, one colour each, where CIFAR-10 would be."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "cifar10.zip", "w") as archive:
        for part in ("train", "test"):
            for i, name in enumerate(CIFAR10_CLASSES):
                for number in range(2):
                    file = io.BytesIO()
                    image.new("RGB", (32, 32), (20 * i, 0, 255)).save(file, "jpeg", quality=100)
                    archive.writestr(f"{part}/{name}/{number:04}.jpg", file.getvalue())
    return tmp_path


def test_cifar10_is_read_from_its_zip_file_and_kept_in_the_cache(cifar10_folder, monkeypatch):
    data = load_dataset("cifar10", cifar10_folder)
    assert data.training.x.shape == (20, 3, 32, 32)
    assert data.training.y is not None
    assert data.training.y.tolist() == sorted([*range(10)] * 2)
    red = data.training.x[data.training.y == 9, 0].mean()
    assert red == pytest.approx((180 / 255 - 0.5) / 0.25, abs=0.05)
    assert len(list((cifar10_folder / "cache").iterdir())) == 1

    monkeypatch.setattr("serving_adapter.parity.datasets._decode_cifar10", lambda path: 1 / 0)
    again = load_dataset("cifar10", cifar10_folder)
    assert np.array_equal(again.test.x, data.test.x)


def test_a_zip_file_of_something_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "cifar10.zip").write_bytes(b"something else")
    with pytest.raises(DataError, match="is not the zip file of CIFAR-10's images"):
        load_dataset("cifar10", tmp_path)
    with zipfile.ZipFile(tmp_path / "cifar10.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(DataError, match="holds no images like"):
        load_dataset("cifar10", tmp_path)


def test_a_file_may_label_items_with_numbers(tmp_path):
    numbers = np.linspace(0, 1, 40).reshape(10, 4)
    data = load_dataset(written(tmp_path / "boxes.npz", x=X, y=numbers))
    assert data.outputs == 4
    assert data.training.y is not None
    assert data.training.y.dtype == np.float32
    assert data.score is None


def test_cats_and_dogs_are_those_of_cifar10(cifar10_folder):
    data = load_dataset("cat-dog", cifar10_folder)
    assert data.outputs == 2
    assert data.training.x.shape == (4, 3, 32, 32)
    assert data.training.y is not None
    assert data.training.y.tolist() == [0, 0, 1, 1]
    (cats, dogs) = (data.training.x[:2, 0].mean(), data.training.x[2:, 0].mean())
    assert cats == pytest.approx((60 / 255 - 0.5) / 0.25, abs=0.05)  # the fourth and the sixth colour
    assert dogs == pytest.approx((100 / 255 - 0.5) / 0.25, abs=0.05)


@pytest.fixture
def fashion_folder(tmp_path, monkeypatch):
    """Where Fashion-MNIST would be."""
    folder = tmp_path / "fashion-mnist"
    write_fashion_files(folder)
    monkeypatch.setattr(fashion_mnist, "INSTALLED", folder)
    return folder


def test_fashion_mnist_is_read_where_it_is_installed_or_named(fashion_folder, tmp_path):
    installed, named = load_dataset("fashion-mnist"), load_dataset("fashion-mnist", tmp_path)
    assert installed.training.x.shape == (40, 1, 28, 28)
    assert installed.outputs == 10
    assert installed.test.y is not None
    assert installed.test.y.tolist() == [i % 10 for i in range(40)]
    assert installed.training.x.max() == pytest.approx((1 - 0.286) / 0.353)
    assert np.array_equal(installed.training.x, named.training.x)


def test_the_files_of_fashion_mnist_may_be_unpacked(fashion_folder):
    for path in fashion_folder.iterdir():
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(load_dataset("fashion-mnist").test.x) == 40


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"no gzip", "cannot be read"),
        (gzip.compress(b"\0\0\x0d\x01\0\0\0\0", mtime=0), "is no IDX file of bytes"),
        (gzip.compress(idx(np.zeros(40, np.uint8))[:-1], mtime=0), "is not whole: it has 39 entries"),
        (gzip.compress(idx(np.zeros(39, np.uint8)), mtime=0), "do not belong together"),
    ],
)
def test_a_damaged_file_of_fashion_mnist_is_refused_in_one_sentence(fashion_folder, content, sentence):
    (fashion_folder / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=f"the data 'fashion-mnist' cannot be read: .*{sentence}"):
        load_dataset("fashion-mnist")


def test_a_box_is_around_the_item_on_its_canvas(fashion_folder, monkeypatch):
    monkeypatch.setattr("serving_adapter.parity.datasets.BOXES", {"train": 60, "test": 40})
    data = load_dataset("fashion-boxes")
    assert data.score == "iou"
    assert data.outputs == 4
    assert data.training.x.shape == (60, 1, 56, 56)
    assert data.training.y is not None
    for image, box in zip(data.training.x[:, 0], data.training.y, strict=True):
        left, top, right, bottom = (box * fashion_mnist.CANVAS).round().astype(int)
        bright = image > (0.5 - 0.15) / 0.25
        assert bright[top:bottom, left:right].all()
        assert bright.sum() == (bottom - top) * (right - left)
    assert np.array_equal(data.training.x, load_dataset("fashion-boxes").training.x)
    assert len({tuple(box) for box in data.training.y.tolist()}) > 50
