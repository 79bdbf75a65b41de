"""`rrl-store run`: programs that know nothing of the store read their weight files through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving_adapter.model_store.unchanged_programs.run_program import RunOptions, environment_for
from tests.support.stores.running_store import COMMAND, Seen, stores
from tests.support.stores.weights_files import saved, some_weights
from tests.support.waiting import until

PROGRAM = """
import json, os, shutil, sys
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

weights, small, garbage = sys.argv[1:]

def sums(tensors):
    return {name: float(tensor.double().sum()) for name, tensor in tensors.items()}

def is_shared(tensors):
    areas = [line.split() for line in open("/proc/self/maps") if "memfd:rrl-weights" in line]
    ranges = [[int(end, 16) for end in area[0].split("-")] for area in areas]
    return any(a <= tensor.data_ptr() < b for a, b in ranges for tensor in tensors.values() if tensor.numel())

def by_safe_open(path):
    with safe_open(path, framework="pt", device="cpu") as file:
        assert file.metadata() == {"made": "here"}
        return {name: file.get_tensor(name) for name in file.keys()}

def by_slices(path):
    with safe_open(path, "pt") as file:
        parts = {name: file.get_slice(name) for name in file.keys() if file.get_tensor(name).ndim}
        return {name: part[0:] for name, part in parts.items()} | {"steps": file.get_tensor("steps")}

def error_of(load):
    try:
        load()
    except Exception as error:
        return type(error).__name__

def absent_tensor():
    with safe_open(weights, "pt") as file:
        file.get_tensor("absent")

told = {}
for way in (load_file, torch.load, by_safe_open, by_slices):
    tensors = way(weights)
    told[way.__name__] = [sums(tensors), is_shared(tensors)]
with safe_open(weights, "pt") as file:
    part, whole = file.get_slice("0.weight"), file.get_tensor("0.weight")
    told["part"] = [
        part.get_shape() == list(whole.shape),
        torch.equal(part[2:5, ::2], whole[2:5, ::2]),
        part[2:5, ::2].is_contiguous(),
    ]
first, second = load_file(weights), load_file(weights)
first["0.weight"].mul_(2)
told["written"] = [sums(tensors)["0.weight"] for tensors in (first, second, load_file(weights))]
told["small"] = [sums(load_file(small)), is_shared(load_file(small))]
with safe_open(weights, "np") as file:
    told["numpy"] = type(file.get_tensor("0.weight")).__name__
with safe_open(weights, "pt") as file:
    told["as_a_class"] = [isinstance(file, safe_open), isinstance(3, safe_open), str(safe_open | None)]
shutil.copy(weights, "replaced.safetensors")
with safe_open("replaced.safetensors", "pt") as file, safe_open(os.path.basename(weights), "pt") as other:
    save_file({name: -tensor for name, tensor in load_file(weights).items()}, "new.safetensors")
    os.replace("new.safetensors", "replaced.safetensors")
    told["replaced"] = [sums({name: file.get_tensor(name) for name in file.keys()})]
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    told["elsewhere"] = [sums(tensors := {name: other.get_tensor(name) for name in other.keys()})]
    told["elsewhere"] += [is_shared(tensors)]
told["errors"] = [error_of(lambda: load_file(garbage)), error_of(lambda: load_file("/none")),
                  error_of(absent_tensor)]
print(json.dumps(told), flush=True)
"""
WAYS = ("load_file", "load", "by_safe_open", "by_slices")

WITH_CHILDREN = """
import multiprocessing, sys
from safetensors.torch import load_file

def child(path):
    held = load_file(path)
    print("memfd:rrl-weights" in open("/proc/self/maps").read(), flush=True)

if __name__ == "__main__":
    for method in ("spawn", "fork"):
        process = multiprocessing.get_context(method).Process(target=child, args=sys.argv[1:])
        process.start()
        process.join()
"""

ONE_FILE = """
import sys
from safetensors.torch import load_file
print(float(load_file(sys.argv[1])["0.weight"].double().sum()),
      "memfd:rrl-weights" in open("/proc/self/maps").read())
"""


def ran(*program: object, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "run", "--", *map(str, program)],
        env=os.environ | variables, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def sums_of(path: Path) -> dict[str, float]:
    return {name: float(tensor.double().sum()) for name, tensor in load_file(path).items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With the weights, and the programs: away from the project."""
    return tmp_path_factory.mktemp("theirs")


@pytest.fixture(scope="module")
def weights(folder):
    save_file(some_weights(), folder / "weights.safetensors", {"made": "here"})
    return folder / "weights.safetensors"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with stores(tmp_path_factory.mktemp("store")) as start:
        yield start()


@pytest.fixture(scope="module")
def told(store, folder, weights) -> dict[str, Any]:
    """What the program says that loads in every way, once it has ended; and what the store has counted."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    garbage = folder / "garbage.safetensors"
    garbage.write_bytes(b"\xff" * 100_000)
    small = saved({"a": torch.ones(10)}, folder / "small.safetensors")
    ended = ran(sys.executable, program, weights, small, garbage, folder=folder, RRL_STORE=str(store.folder))
    assert (ended.returncode, ended.stderr) == (0, "")
    with store.client() as client:
        seen = Seen(client)
        until(lambda: seen.references == 0, "the program's references return")
        return json.loads(ended.stdout) | {"misses": seen.tier().misses, "hits": seen.tier().hits}


@pytest.mark.parametrize("way", WAYS)
def test_an_unchanged_program_gets_its_weights_from_the_store(told, weights, way):
    sums, is_shared = told[way]
    assert sums == sums_of(weights)
    assert is_shared or way == "by_slices"  # whose last part is a copy


def test_the_store_reads_a_file_once(told):
    assert told["misses"] == 1
    assert told["hits"] >= 6


def test_parts_are_those_of_the_tensor(told):
    assert told["part"] == [True, True, True]


def test_what_a_program_writes_to_its_weights_stays_with_it(told, weights):
    value = sums_of(weights)["0.weight"]
    assert told["written"] == [pytest.approx(2 * value), value, value]


def test_what_sharing_does_not_pay_for_and_what_is_not_for_torch_is_read_as_ever(told):
    assert told["small"] == [{"a": 10.0}, False]
    assert told["numpy"] == "ndarray"


def test_safe_open_is_a_class_as_the_librarys(told):
    assert told["as_a_class"] == [True, False, "safe_open | None"]


def test_an_open_file_is_read_as_it_was_although_another_takes_its_name(told, weights):
    assert told["replaced"] == [sums_of(weights)]


def test_an_open_file_is_read_wherever_the_program_goes(told, weights):
    assert told["elsewhere"] == [sums_of(weights), True]


def test_errors_are_those_of_the_library(told):
    assert told["errors"] == ["SafetensorError", "FileNotFoundError", "SafetensorError"]


def test_its_children_have_the_store_too(store, folder, weights):
    program = folder / "with_children.py"
    program.write_text(WITH_CHILDREN)
    ended = ran(sys.executable, program, weights, RRL_STORE=str(store.folder))
    assert (ended.stdout, ended.stderr) == ("True\n" * 2, "")


def test_the_programs_own_sitecustomize_runs_once(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.theirs = getattr(sys, 'theirs', 0) + 1\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = ran(
        sys.executable,
        "-c",
        "import sys, sitecustomize, safetensors\n"
        "print(sys.theirs, sitecustomize.__file__, hasattr(safetensors.safe_open, '__wrapped__'))",
        PYTHONPATH=path,
    )
    assert (ended.stdout, ended.stderr) == (f"1 {tmp_path / 'sitecustomize.py'} True\n", "")


def test_a_python_without_the_project_runs_the_program_as_ever(tmp_path):
    """It finds our folder first, and then one whose `serving_adapter` cannot be imported."""
    (tmp_path / "serving_adapter.py").write_text("raise ImportError")
    program = "import safetensors; print(safetensors.safe_open)"
    path = f'PYTHONPATH="${{PYTHONPATH%%:*}}:{tmp_path}"'
    ended = ran("sh", "-c", f'{path} exec {sys.executable} -c "{program}"')
    assert (ended.stdout, ended.stderr) == ("<class 'builtins.safe_open'>\n", "")


def test_without_a_store_the_program_runs_as_ever(folder, weights, tmp_path):
    (tmp_path / "file").write_text("")
    program = folder / "one_file.py"
    program.write_text(ONE_FILE)
    ended = ran(sys.executable, program, weights, RRL_STORE=str(tmp_path / "file"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{sums_of(weights)['0.weight']} False\n"


def test_the_programs_exit_status_and_arguments_are_its_own():
    ended = ran(sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "--", "-x", "--folder")
    assert (ended.returncode, ended.stdout) == (7, "['--', '-x', '--folder']\n")


@pytest.mark.parametrize(
    ("program", "sentence"), [((), "needs a program behind --"), (("/none",), "/none cannot be run: No such")]
)
def test_wrong_use_is_said_in_one_sentence(program, sentence):
    ended = ran(*program)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_the_folder_is_put_before_the_path_that_there_was():
    for before in ({}, {"PYTHONPATH": ""}, {"PYTHONPATH": "/a::/b"}):
        once = environment_for(RunOptions(), before)
        first, *others = once["PYTHONPATH"].split(":")
        assert (Path(first) / "sitecustomize.py").exists()
        assert others == (["/a", "", "/b"] if before.get("PYTHONPATH") else [])
        assert environment_for(RunOptions(), once) == once
    assert "RRL_STORE" not in environment_for(RunOptions(), {})
    assert environment_for(RunOptions(Path("/s")), {})["RRL_STORE"] == "/s"
