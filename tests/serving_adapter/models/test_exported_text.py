"""What torch would evaluate of an exported file is arithmetic, or the file is refused in a sentence."""

from __future__ import annotations

import pytest

from serving_adapter.models.exported_text import (
    MAX_CHARACTERS,
    UnsafeText,
    check_expression,
    check_guard,
    check_operator,
    check_program,
)

SIZE = "Symbol('s77', positive=True, integer=True)"


@pytest.mark.parametrize(
    "text",
    [
        SIZE,
        "s77",
        "2*s77 + 1",
        "s0//2 - 3 % s1",
        f"Mul(Integer(-1), {SIZE})",
        f"Pow({SIZE}, Integer(2))",
        f"Pow({SIZE}, Rational(1, 2))",
        f"FloatPow(ToFloat({SIZE}), Float('0.5', precision=53))",
        f"Max(Integer(1), TruncToInt(Mul(Float('1.7', precision=53), ToFloat({SIZE}))))",
        "GreaterThan(Symbol('u0', integer=True), Integer(0))",
        f"Add({SIZE}, PythonMod(Mul(Integer(-1), {SIZE}), Integer(4)))",
        "2**s0",
        "Eq(s0, 2) | (s1 > 3)",
        "9223372036854775806",
    ],
)
def test_arithmetic_is_an_expression(text):
    check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true') + s77",
        "().__class__",
        "Symbol('s77').func",
        "Symbol(\"x') + evil('\")",
        "Symbol('__x__')",
        "eval('1')",
        "open(Symbol('x'))",
        "[x for x in (1,)]",
        "lambda: 0",
        "(lambda: 0)()",
        "Integer(1)(2)",
        "Integer('1')",
        "Integer(*s0)",
        "Symbol('s77', **s0)",
        "Symbol('s77', key='text')",
        "Float('nan nan')",
        "f'{s0}'",
        "s0.size()",
        "L['x'].size()[0]",
        "s0[0]",
        "s0 if s1 else s2",
        "__builtins__",
        "(y := 1)",
        "s0; s1",
        "s0\nimport os",
        "",
        "!s0",
        "1if s0 else s1",
        None,
        5,
        ["s0"],
        "9**9**9",
        "(9**64)**64",
        "Pow(Pow(9, 64), 64)",
        "Pow(10, Mul(64, 64, 64, 64))",
        "PowByNatural(Integer(2), Integer(10000000000))",
        "1 << 10000000000",
        "1e999",
        "1" * 1000,
        "s0" + " + s0" * MAX_CHARACTERS,
        "(" * 2000,
        "-" * 4000 + "1",
    ],
)
def test_anything_else_is_refused_in_a_short_sentence(text):
    with pytest.raises(UnsafeText) as refused:
        check_expression(text)
    assert type(refused.value) is UnsafeText
    assert "\n" not in str(refused.value)
    assert 20 < len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "(L['x'].size()[0] % 2) == 0",
        "((L['args'][0].size()[0]*L['args'][0].size()[1]) // 2) != L['args'][0].size()[0]",
        "math.trunc(0.5*torch.sym_float(L['x'].size()[1])) == 3",
        "2 <= L['x'].size()[0] and L['x'].size()[0] <= 64",
        "not (L['x'].dim() == 3)",
        "max(1, L['x'].size()[1] // 2) < math.inf",
    ],
)
def test_a_condition_over_sizes_is_a_guard(text):
    check_guard(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "L['x'].__class__ == 1",
        "L['x'].size.__globals__['os']",
        "L['x'].numpy().tofile('/tmp/x') is None",
        "torch.load('/tmp/x') is None",
        "torch.sym_float.__globals__ is None",
        "math.factorial(10**9) > 0",
        "math.inf.__class__ == 1",
        "max(__import__('os')) == 1",
        "vars()['x'] == 1",
        "L[__import__('os')] == 1",
        "L['\"); evil(); (\"'].size()[0] == 1",
    ],
)
def test_a_guard_that_does_anything_else_is_refused(text):
    with pytest.raises(UnsafeText):
        check_guard(text)


@pytest.mark.parametrize(
    "name",
    [
        "torch.ops.aten.add.Tensor",
        "torch.ops.aten.__and__.Tensor",
        "torch.ops.higher_order.cond",
        "torch.ops._c10d_functional.all_reduce.default",
        "torch.ops.torchvision.nms.default",
        "torch.sym_max",
        "torch._check_is_size",
        "_operator.floordiv",
        "math.trunc",
    ],
)
def test_operators_are_called(name):
    check_operator(name)


@pytest.mark.parametrize(
    "name",
    [
        "torch.serialization.os.system",
        "torch.load",
        "torch.ops.load_library",
        "torch.ops.aten.__init__.__globals__",
        "torch.ops.aten.__class__.mro",
        "torch.ops.__class__.mro",
        "_operator.attrgetter",
        "_operator.methodcaller",
        "_operator.call",
        "math.factorial",
        "os.system",
        "#extension:op",
        "getattr",
        "",
    ],
)
def test_nothing_else_is_called(name):
    with pytest.raises(UnsafeText, match="which is no operator"):
        check_operator(name)


def test_text_is_found_wherever_it_lies_in_a_program():
    for place in ("expr_str", "target", "as_operator"):
        program: object = {place: "os.system"}
        for _ in range(5):
            program = {"deeper": [1, None, program]}
        with pytest.raises(UnsafeText):
            check_program(program)
    check_program({"a": ["b", 1, None, {"metadata": {"stack_trace": "os.system"}}]} | {"c": 1.5})
