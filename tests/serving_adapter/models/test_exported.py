"""Exported files: what runs, what is refused, and that nothing is unpickled on the way."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from serving_adapter.models.branches import parallel, torchscript
from serving_adapter.models.loading import load_model
from serving_adapter.models.model import ModelError
from serving_adapter.tensors import TensorSpec

INPUTS = [{"name": "x", "datatype": "FP32", "shape": [4]}]


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x).softmax(-1)


class Opens:
    """An object that, unpickled, leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def exported(tmp_path) -> Path:
    path = tmp_path / "classifier.pt2"
    program = torch.export.export(
        Classifier().eval(), (torch.ones(2, 4),), dynamic_shapes={"x": {0: torch.export.Dim("batch")}}
    )
    torch.export.save(program, path)
    specify(path)
    return path


@pytest.fixture
def scripted(tmp_path) -> Path:
    path = tmp_path / "classifier.pt"
    with torchscript():
        torch.jit.save(torch.jit.script(Classifier().eval()), path)
    specify(path)
    return path


def specify(path: Path, inputs: object = INPUTS) -> None:
    path.with_suffix(".inputs.json").write_text(json.dumps(inputs))


def altered(path: Path, to: Path, change) -> Path:
    """A copy of an archive whose records went through `change(name, data) -> data`."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            new.writestr(info.filename, change(info.filename, old.read(info)))
    specify(to)
    return to


@pytest.mark.parametrize("kind", ["exported", "scripted"])
def test_an_exported_file_answers_batches_of_any_size(kind, request):
    model = load_model(str(request.getfixturevalue(kind)), {})
    assert model.inputs == (TensorSpec("x", "FP32", (4,)),)
    assert not model.has_parallel_branches
    x = torch.randn(5, 4)
    whole = model.run({"x": x})["output0"]
    assert whole.shape == (5, 3)
    torch.testing.assert_close(model.run({"x": x[:1]})["output0"], whole[:1])


def test_the_inputs_may_be_specified_in_yaml(exported):
    exported.with_suffix(".inputs.json").unlink()
    exported.with_suffix(".inputs.yaml").write_text(
        "- {name: ids, datatype: INT64, shape: [-1], pad_value: 0, max_size: 9}"
    )
    spec = TensorSpec("ids", "INT64", (-1,), pad_value=0, max_size=9)
    assert load_model(str(exported), {}).inputs == (spec,)


def test_parallel_branches_of_a_torchscript_file_are_found(tmp_path):
    path = tmp_path / "branches.ts"
    with torchscript():
        torch.jit.save(parallel([torch.nn.ReLU(), torch.nn.Tanh()], torch.ones(1, 4)), path)
    specify(path)
    assert load_model(str(path), {}).has_parallel_branches


def test_a_missing_specification_is_asked_for_by_its_name(exported):
    exported.with_suffix(".inputs.json").unlink()
    with pytest.raises(
        ModelError, match=r'write .*classifier\.inputs\.json like \[\{"name": "x", "datatype"'
    ):
        load_model(str(exported), {})


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ([{"name": "x", "shape": [4]}], "lacks 'datatype'"),
        ([{"name": "x", "datatype": "FP31", "shape": [4]}], "datatype 'FP31' is not supported"),
        (
            [{"name": "x", "datatype": "FP32", "shape": [4], "unit": "m"}],
            "unexpected keyword argument 'unit'",
        ),
        ([{"name": "x", "datatype": "FP32", "shape": [4.5]}], r"whole numbers, -1 for any, got \[4\.5\]"),
        ([{"name": "x", "datatype": "FP32", "shape": "4"}], "whole numbers, -1 for any"),
        ([{"name": "x", "datatype": "FP32", "shape": [4], "pad_value": "0"}], "pad_value must be a number"),
        ([{"name": "x", "datatype": "UINT8", "shape": [4], "pad_value": -1}], "that UINT8 holds, got -1"),
        ([{"name": "x", "datatype": "FP32", "shape": [4], "max_size": "9"}], "whole number from 1, got '9'"),
        ([{"name": "x", "datatype": "FP32", "shape": [0]}], "which no request could have"),
        ({"x": "FP32"}, "expected a list like"),
        (3, "expected a list like"),
    ],
)
def test_a_wrong_specification_gets_one_sentence(exported, inputs, problem):
    specify(exported, inputs)
    with pytest.raises(ModelError, match=problem):
        load_model(str(exported), {})


@pytest.mark.parametrize("kind", ["exported", "scripted"])
def test_the_number_of_inputs_must_agree(kind, request):
    path = request.getfixturevalue(kind)
    specify(path, [*INPUTS, INPUTS[0] | {"name": "y"}])
    with pytest.raises(ModelError, match="takes 1 inputs but its specification lists 2: x, y"):
        load_model(str(path), {})


def test_a_file_exported_for_one_batch_size_is_refused(tmp_path):
    path = tmp_path / "fixed.pt2"
    torch.export.save(torch.export.export(Classifier().eval(), (torch.ones(2, 4),)), path)
    specify(path)
    with pytest.raises(
        ModelError, match="exported for batches of one size only; export it with an example of 2 rows or more"
    ):
        load_model(str(path), {})


@pytest.mark.parametrize("name", ["weights.pt", "weights.pt2"])
def test_a_pickled_state_dict_is_refused_and_not_opened(tmp_path, name):
    path, mark = tmp_path / name, tmp_path / "mark"
    torch.save({"weight": Opens(mark)}, path)
    specify(path)
    with pytest.raises(ModelError, match=r"is not a (TorchScript|torch\.export) file"):
        load_model(str(path), {})
    assert not mark.exists()


def test_pickles_inside_an_export_are_refused_and_not_opened(exported, tmp_path):
    mark = tmp_path / "mark"
    evil = io.BytesIO()
    torch.save((Opens(mark),), evil)

    sample_inputs = altered(
        exported,
        tmp_path / "sample.pt2",
        lambda name, data: evil.getvalue() if "sample_inputs" in name else data,
    )

    def pickled_weights(name: str, data: bytes) -> bytes:
        if name.endswith("_weights_config.json"):
            config = json.loads(data)
            for payload in config["config"].values():
                payload["use_pickle"] = True
            return json.dumps(config).encode()
        return evil.getvalue() if "/weights/weight_" in name else data

    weights = altered(exported, tmp_path / "weights.pt2", pickled_weights)
    for path in (sample_inputs, weights):
        with pytest.raises(ModelError, match="cannot be loaded without unpickling"):
            load_model(str(path), {})

    objects = altered(exported, tmp_path / "objects.pt2", lambda name, data: data)
    with zipfile.ZipFile(objects, "a") as archive:
        archive.writestr("classifier/data/constants/opaque_obj_0", pickle.dumps(Opens(mark)))
    with pytest.raises(ModelError, match="pickled objects or compiled code"):
        load_model(str(objects), {})
    assert not mark.exists()


def in_an_expression(program: dict, code: str) -> None:
    program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = code


def in_a_guard(program: dict, code: str) -> None:
    program["guards_code"] = [f"{code} is not None"]


def in_an_operator(program: dict, code: str) -> None:
    node = program["graph_module"]["graph"]["nodes"][0]
    node["target"] = "torch.serialization.os.system"
    node["inputs"] = [{"name": "command", "arg": {"as_string": code}, "kind": 1}]


def in_a_default_of_an_input(program: dict, code: str) -> None:
    context = {"default_factory_module": "os", "default_factory_name": "getcwd", "dict_context": []}
    spec = {"type": "collections.defaultdict", "context": json.dumps(context), "children_spec": []}
    for call in filter(lambda call: call["signature"], program["graph_module"]["module_call_graph"]):
        call["signature"]["in_spec"] = json.dumps([1, spec])


def in_the_name_of_an_output(program: dict, code: str) -> None:
    spec = {"type": "builtins.dict", "context": json.dumps([f'"); {code}; ("']), "children_spec": []}
    for call in filter(lambda call: call["signature"], program["graph_module"]["module_call_graph"]):
        call["signature"]["out_spec"] = json.dumps([1, spec])


@pytest.mark.parametrize(
    "place",
    [in_an_expression, in_a_guard, in_an_operator, in_a_default_of_an_input, in_the_name_of_an_output],
    ids=lambda place: place.__name__,
)
def test_code_in_the_text_of_an_export_is_refused_and_not_run(exported, tmp_path, place):
    mark = tmp_path / "mark"

    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return data
        program = json.loads(data)
        place(program, f"__import__('pathlib').Path({str(mark)!r}).touch()")
        return json.dumps(program).encode()

    evil = altered(exported, tmp_path / "evil.pt2", change)
    with pytest.raises(ModelError, match=r"evil\.pt2 is not loaded: ") as refused:
        load_model(str(evil), {})
    assert "\n" not in str(refused.value)
    assert not mark.exists()


def test_an_export_over_whose_sizes_it_reckons_is_loaded_with_its_guards(tmp_path):
    class Halves(torch.nn.Module):
        def forward(self, x):
            half = x[:, : x.shape[1] // 2] * x.shape[1] ** 0.5
            return torch.nn.functional.pad(half, (0, (-half.shape[1]) % 4))

    program = torch.export.export(
        Halves().eval(),
        (torch.ones(2, 6),),
        dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.AUTO}},
    )
    torch.export.save(program, tmp_path / "halves.pt2")
    specify(tmp_path / "halves.pt2", [{"name": "x", "datatype": "FP32", "shape": [-1]}])
    model = load_model(str(tmp_path / "halves.pt2"), {})
    assert model.run({"x": torch.ones(3, 10)})["output0"].shape == (3, 8)


def test_an_export_whose_text_would_fill_the_memory_is_refused(exported, tmp_path):
    bomb = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(exported) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    specify(bomb)
    with pytest.raises(ModelError, match="is compressed"):
        load_model(str(bomb), {})
    deep = altered(
        exported,
        tmp_path / "deep.pt2",
        lambda name, data: b"[" * 100_000 if name.endswith("model.json") else data,
    )
    with pytest.raises(ModelError, match="nested too deeply"):
        load_model(str(deep), {})


@pytest.mark.parametrize("name", ["noise.pt", "noise.pt2"])
def test_a_file_of_another_format_gets_one_sentence(tmp_path, name):
    (tmp_path / name).write_bytes(b"not an archive")
    specify(tmp_path / name)
    with pytest.raises(ModelError, match=r"is not a (TorchScript|torch\.export) file") as caught:
        load_model(str(tmp_path / name), {})
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_and_options_for_a_file_are_refused(exported):
    with pytest.raises(ModelError, match=r"there is no model file nowhere\.pt2"):
        load_model("nowhere.pt2", {})
    with pytest.raises(ModelError, match="takes no options, got size"):
        load_model(str(exported), {"size": "3"})


class Sums(torch.nn.Module):
    def forward(self, x):
        return x.sum(1, keepdim=True)


def limited(path: Path, batch: torch.export.Dim, length: torch.export.Dim, **spec: object) -> Path:
    shapes = {"x": {0: batch, 1: length}}
    torch.export.save(torch.export.export(Sums().eval(), (torch.ones(4, 5),), dynamic_shapes=shapes), path)
    specify(path, [{"name": "x", "datatype": "FP32", "shape": [-1]} | spec])
    return path


@pytest.mark.parametrize(("told", "longest"), [({}, 50), ({"max_size": 40}, 40), ({"max_size": 90}, 50)])
def test_the_range_constraints_of_an_export_bound_rows_and_sizes(tmp_path, told, longest):
    batch, length = torch.export.Dim("batch", max=8), torch.export.Dim("length", max=50)
    model = load_model(str(limited(tmp_path / "sums.pt2", batch, length, **told)), {})
    assert model.max_rows == 8
    assert [spec.max_size for spec in model.inputs] == [longest]


def test_an_export_without_limits_has_none_and_one_for_large_batches_only_is_refused(tmp_path):
    free = load_model(
        str(limited(tmp_path / "free.pt2", torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC)), {}
    )
    assert (free.max_rows, free.inputs[0].max_size) == (None, None)
    many = torch.export.Dim("batch", min=3, max=8)
    with pytest.raises(ModelError, match="exported for batches of at least 3 rows"):
        load_model(str(limited(tmp_path / "many.pt2", many, torch.export.Dim.DYNAMIC)), {})


@pytest.mark.parametrize(("kind", "loader"), [("exported", torch.export), ("scripted", torch.jit)])
def test_a_file_that_is_written_to_while_it_is_loaded_is_refused(kind, loader, request, monkeypatch):
    path, load = request.getfixturevalue(kind), loader.load

    def written_meanwhile(file, **options):
        with path.open("r+b") as open_file:
            open_file.write(path.read_bytes()[:4])
        return load(file, **options)

    monkeypatch.setattr(loader, "load", written_meanwhile)
    with pytest.raises(
        ModelError, match=r"was written to while it was loaded; write another file and rename"
    ):
        load_model(str(path), {})


def test_what_is_loaded_is_the_file_that_was_checked(exported, monkeypatch):
    """Another file takes its name after the check has begun."""

    def check(program: object) -> None:
        other = exported.with_name("other")
        other.write_bytes(b"nobody has checked this")
        other.replace(exported)

    monkeypatch.setattr("serving_adapter.models.exported.check_program", check)
    assert load_model(str(exported), {}).inputs == (TensorSpec("x", "FP32", (4,)),)
