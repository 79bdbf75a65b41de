"""What opening a model gives."""

from __future__ import annotations

import copy
import gc
import io
import os
import resource
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from serving_adapter import model_store
from serving_adapter.model_store import StoreError, UnknownModel
from serving_adapter.model_store.torch_side import tensor_types, tensors
from tests.support.pipes import line_of
from tests.support.stores.running_store import Seen, script
from tests.support.stores.store_clients import CHILD, net
from tests.support.stores.weights_files import saved, some_weights, with_header


@pytest.mark.parametrize(("version", "seed"), [("1", 0), ("2", 1), ("", 1)])
def test_an_opened_model_loads_into_a_meta_module_and_answers_as_a_private_one(store, version, seed):
    with torch.device("meta"):
        module = net(5).eval()
    module.load_state_dict(model_store.open("net", version), assign=True)
    x = torch.randn(4, 128)
    assert torch.equal(module(x), net(seed)(x))


def test_what_nobody_has_is_an_unknown_model(store):
    for name, version in (("nope", ""), ("net", "9"), ("../net", "1"), ("", "")):
        with pytest.raises(UnknownModel):
            model_store.open(name, version)


@pytest.mark.parametrize("as_path", [str, lambda path: path])
def test_load_file_gives_what_safetensors_gives(store, tmp_path, as_path):
    weights = some_weights()
    weights |= {str(dtype): torch.arange(6).to(dtype).reshape(1, 2, 3) for dtype in tensors.NAMES}
    path = as_path(saved(weights, tmp_path / "w.safetensors"))
    ours, theirs = model_store.load_file(path), safetensors.torch.load_file(path)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert ours[name].shape == tensor.shape
        assert ours[name].stride() == tensor.stride()
        assert torch.equal(ours[name].view(torch.uint8), tensor.view(torch.uint8)) if tensor.ndim else True
        assert torch.equal(ours[name].to(torch.complex64), tensor.to(torch.complex64))


def test_a_tensors_storage_is_its_own_bytes_so_that_copies_take_no_more(store, tmp_path):
    """The large tensors begin at a huge page each; what lies between them cannot be read."""
    weights = some_weights(width=1024) | {"last": torch.ones(3)}
    loaded = model_store.load_file(saved(weights, tmp_path / "w.safetensors"))
    assert {name: t.untyped_storage().nbytes() for name, t in loaded.items()} == {
        name: t.numel() * t.element_size() for name, t in weights.items()
    }
    assert torch.equal(copy.deepcopy(loaded["last"]), weights["last"])
    stream = io.BytesIO()
    torch.save(loaded, stream)
    stream.seek(0)
    again = torch.load(stream)
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())


PADDING = {"dtype": "F32", "shape": [1 << 16], "data_offsets": [0, 1 << 18]}  # so that sharing pays


def with_tensor(path: Path, dtype: str, shape: list[int], size_bytes: int) -> Path:
    """A file with a tensor of a type that torch may not be able to write."""
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [1 << 18, (1 << 18) + size_bytes]}
    with_header(path, {"padding": PADDING, "x": entry})
    with path.open("ab") as file:
        file.write(bytes(1 << 18) + bytes(range(1, size_bytes + 1)))
    return path


YOUNG_TYPES = [
    ("F8_E8M0", [4], 4),
    ("F8_E4M3FNUZ", [4], 4),
    ("F8_E5M2FNUZ", [2, 2], 4),
    ("F4", [3, 4], 6),
    ("U16", [2], 4),
    ("C64", [1, 2], 16),
]


@pytest.mark.parametrize(("dtype", "shape", "size_bytes"), YOUNG_TYPES, ids=str)
def test_young_types_are_shared_as_the_library_reads_them(
    root, store, tmp_path, caplog, dtype, shape, size_bytes
):
    path = with_tensor(tmp_path / "w", dtype, shape, size_bytes)
    in_repository = root / "young" / dtype / "model.safetensors"
    in_repository.parent.mkdir(parents=True)
    in_repository.write_bytes(path.read_bytes())
    expected = safetensors.torch.load_file(path)["x"]
    for weights in (model_store.load_file(path), model_store.open("young", dtype)):
        assert (weights["x"].dtype, weights["x"].shape) == (expected.dtype, expected.shape)
        assert weights["x"].view(torch.uint8).equal(expected.view(torch.uint8))
        assert tensors._is_shared(weights["x"])
    assert not caplog.records


@pytest.mark.parametrize(("dtype", "shape", "size_bytes"), [("F6_E2M3", [4], 3), ("F4", [2, 3], 3)])
def test_a_type_that_torch_lacks_is_told_once_before_the_library_refuses_it(
    store, tmp_path, caplog, dtype, shape, size_bytes
):
    path = with_tensor(tmp_path / "w", dtype, shape, size_bytes)
    with pytest.raises(SafetensorError):
        model_store.load_file(path)
    (record,) = caplog.records
    assert dtype in record.getMessage()
    with path.open("rb") as file, pytest.raises(StoreError, match=dtype):
        tensors.state_dict(tensors.default_client().open_file(file, "w"))
    gc.collect()


def test_a_type_that_only_the_library_knows_is_loaded_privately(store, tmp_path, caplog, monkeypatch):
    monkeypatch.delitem(tensor_types.ITEMS, "F8_E8M0")
    path = with_tensor(tmp_path / "w", "F8_E8M0", [4], 4)
    weights = model_store.load_file(path)
    assert weights["x"].dtype == torch.float8_e8m0fnu
    (record,) = caplog.records
    assert "is loaded privately: torch" in record.getMessage()
    assert "has no type for F8_E8M0 tensors" in record.getMessage()


def test_load_file_fails_as_safetensors_does(store, tmp_path):
    (tmp_path / "garbage").write_bytes(b"\xff" * 1000)
    (tmp_path / "empty").write_bytes(b"")
    whole = saved(some_weights(), tmp_path / "whole").read_bytes()
    (tmp_path / "truncated").write_bytes(whole[:-1])
    (tmp_path / "longer").write_bytes(whole + b"x")
    for name in ("missing", "garbage", "empty", "truncated", "longer", "."):
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            safetensors.torch.load_file(tmp_path / name)
        with pytest.raises(type(theirs.value)):
            model_store.load_file(tmp_path / name)


def test_a_file_that_was_written_again_is_loaded_again(store, tmp_path):
    for seed in range(3):
        path = saved(some_weights(seed), tmp_path / "w")
        assert torch.equal(model_store.load_file(path)["0.weight"], some_weights(seed)["0.weight"])


def test_a_second_load_reads_no_weights(store, seen, tmp_path):
    path = saved(some_weights(), tmp_path / "w")
    held = model_store.load_file(path)
    before = seen.tier()
    again = model_store.load_file(path)
    after = seen.tier()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 0)
    assert after.used_bytes == before.used_bytes
    del held, again


def test_a_file_too_small_for_sharing_to_pay_is_loaded_privately(store, seen, tmp_path):
    weights = model_store.load_file(saved({"a": torch.ones(10)}, tmp_path / "small"))
    assert seen.references == 0
    weights["a"].zero_()


def test_several_threads_may_load_at_once(store, seen, tmp_path):
    paths = [saved(some_weights(i), tmp_path / str(i)) for i in range(4)]
    failures: list[BaseException] = []

    def load(i: int) -> None:
        try:
            for j in range(10):
                weights = model_store.load_file(paths[(i + j) % 4])
                assert torch.equal(weights["0.weight"], some_weights((i + j) % 4)["0.weight"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=load, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_more_tensors_than_the_process_may_have_descriptors(start_store, tmp_path):
    """Each lies in a segment of its own, and 1,024 descriptors are all that a process has by default."""
    store = start_store("--granularity", "tensor")
    count, size = 400, 1 << 16
    entries = {
        str(i): {"dtype": "F32", "shape": [size // 4], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(count)
    }
    path = with_header(tmp_path / "many", entries, count * size)
    text = CHILD + (
        "import logging; logging.raiseExceptions = False\n"
        "weights = model_store.load_file(sys.argv[1])\n"
        "import os; print(len(weights), len(os.listdir('/proc/self/fd')), flush=True)\nsys.stdin.read()"
    )
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
    with script(limit + text, path, RRL_STORE=str(store.folder)) as process, store.client() as client:
        answered, open_descriptors = map(int, line_of(process).split())
        assert (answered, Seen(client).references) == (count, 1)  # not loaded privately
        assert open_descriptors < 100


def test_descriptors_of_the_client_do_not_grow(store, seen, tmp_path):
    path = saved(some_weights(), tmp_path / "w")
    model_store.load_file(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        model_store.load_file(path)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > before
