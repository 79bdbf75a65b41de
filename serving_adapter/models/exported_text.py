"""What the text in a `.pt2` file may say. Torch evaluates some of it as Python, so it is read here first.

| text | what torch does with it | what it may be |
|---|---|---|
| `expr_str` | `sympy.sympify`, which is `eval` | arithmetic of numbers and symbols |
| `guards_code` | compiled, and run with each batch | the same over sizes of inputs, compared |
| `target`, `as_operator` | looked up from `torch`, `operator`, `math` | an operator, by its whole name |
| `in_spec`, `out_spec` | imports what they name | tuples, lists and dicts with plain names |

All else is refused, and so is what is longer or steeper than any model needs. So text is no code. But the
operators of a program do what they do, so a file is as trustworthy as its author.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from serving_adapter.json_text import parsed

MAX_CHARACTERS = 4096  # of one expression or guard
MAX_NUMBER = 1 << 64
MAX_EXPONENT = 64

_SYMPY = """Symbol Integer Float Rational Add Mul Pow Max Min Abs Mod floor ceiling Piecewise ExprCondPair
    Eq Ne Equality Unequality GreaterThan LessThan StrictGreaterThan StrictLessThan And Or Not"""
_TORCH = """FloorDiv ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift
    PowByNatural FloatPow FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt
    RoundToInt RoundDecimal ToFloat Identity"""
_PYTHON = """add sub mul truediv floordiv mod pow neg pos abs lt le gt ge eq ne and_ or_ xor not_
    lshift rshift getitem index inv invert truth is_ is_not matmul"""
_FUNCTIONS = frozenset(f"{_SYMPY} {_TORCH}".split())
_OPERATORS = frozenset(_PYTHON.split())
_POWERS = frozenset(("Pow", "PowByNatural", "FloatPow", "LShift"))
_NUMBERS = frozenset(("Integer", "Float", "Rational"))
_METHODS = frozenset(("size", "stride", "storage_offset", "dim", "numel"))
_OF_MATH = "ceil floor trunc sqrt pow exp log log2 cos cosh acos sin sinh asin tan tanh atan"
_MATH = frozenset(f"math.{name}" for name in _OF_MATH.split())
_OF_GUARDS = frozenset(("max", "min", "abs", "round"))
_NOT_FINITE = ("math.inf", "math.nan")
_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")
_NAMED_TUPLE = "collections.namedtuple"

_BEYOND_FLOATS = re.compile(r"\de[+-]?\d{4}", re.IGNORECASE)  # sympy has such numbers, and takes minutes
_NAME = re.compile(r"(?!.*__)[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[A-Za-z0-9_ .:/\-]{0,200}")  # torch writes it into code between quotes
_LIBRARY_OPERATOR = re.compile(r"torch\.ops\.(?!__)\w+\.(\w+)(\.\w+)?")
_DUNDER_OPERATOR = re.compile(r"__i?(and|or|xor|lshift|rshift)__")
_SYMBOLIC = re.compile(r"torch\._?(sym_[a-z0-9_]+|check[a-z_]*)")

_ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Load,
    ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip


class UnsafeText(ValueError):
    """Text that is not loaded; the message says which, and what was expected."""


def check_program(program: Any) -> None:
    """UnsafeText unless every text that torch would evaluate is one of those above."""
    if isinstance(program, list):
        for entry in program:
            check_program(entry)
    if not isinstance(program, dict):
        return
    for key, value in program.items():
        if key == "expr_str":
            check_expression(value)
        elif key == "guards_code":
            for guard in value or ():
                check_guard(guard)
        elif key in ("target", "as_operator") and isinstance(value, str):
            check_operator(value)
        elif key in ("in_spec", "out_spec") and isinstance(value, str):
            _check_spec(_parsed(value))
        else:
            check_program(value)


def check_expression(text: object) -> None:
    """A size: sums, products and the like of numbers and symbols."""
    _check_tree(text, "expression", _Arithmetic(sizes_of_inputs=False))


def check_guard(text: object) -> None:
    """A condition over the sizes of the inputs."""
    _check_tree(text, "guard", _Arithmetic(sizes_of_inputs=True))


def check_operator(name: str) -> None:
    """What a node of the program calls."""
    library = _LIBRARY_OPERATOR.fullmatch(name)
    if library and ("__" not in name or _DUNDER_OPERATOR.fullmatch(library[1])):
        return
    module, _, rest = name.partition(".")
    if (module == "_operator" and rest in _OPERATORS) or name in _MATH or _SYMBOLIC.fullmatch(name):
        return
    raise UnsafeText(f"it calls {name[:80]!r}, which is no operator of a torch library or of arithmetic")


def _check_tree(text: object, kind: str, check: _Arithmetic) -> None:
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise UnsafeText(f"an {kind} of it is no text of at most {MAX_CHARACTERS:,} characters")
    try:
        with warnings.catch_warnings(action="error", category=SyntaxWarning):  # what Python warns of is odd
            tree = ast.parse(text, mode="eval")
        _require(not _BEYOND_FLOATS.search(text))
        check.visit(tree)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
        raise UnsafeText(f"the {kind} {text[:80]!r} in it is no arithmetic of numbers and symbols") from None


class _Arithmetic(ast.NodeVisitor):
    """Raises `UnsafeText` for a tree with anything but arithmetic in it."""

    def __init__(self, sizes_of_inputs: bool) -> None:
        self._sizes_of_inputs = sizes_of_inputs
        self._within_power = False

    def generic_visit(self, node: ast.AST) -> None:
        if not isinstance(node, _ARITHMETIC):
            raise UnsafeText(type(node).__name__)
        super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, (int, float)) or abs(node.value) > MAX_NUMBER:
            raise UnsafeText("a constant")

    def visit_Name(self, node: ast.Name) -> None:
        _require(_NAME.fullmatch(node.id))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, (ast.Pow, ast.LShift)):
            self._visit_power(node.left, node.right)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        for keyword in node.keywords:  # assumptions of a symbol, or a number's precision
            _require(keyword.arg and _NAME.fullmatch(keyword.arg))
            _require(isinstance(keyword.value, ast.Constant) and type(keyword.value.value) in (bool, int))
            self.visit(keyword.value)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("Symbol", "Float") and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
            _check_leaf(name, node.args[0].value)
        elif name in _POWERS and len(node.args) == 2:
            self._visit_power(*node.args)
        else:
            _require(name in _FUNCTIONS or self._is_of_guards(node.func))
            for argument in node.args:
                self.visit(argument)

    def _visit_power(self, base: ast.expr, exponent: ast.expr) -> None:
        """A power of a power, or a large exponent, makes a number that nothing can hold."""
        _require(not self._within_power and _is_small(exponent))
        self._within_power = True
        self.visit(base)
        self.visit(exponent)
        self._within_power = False

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """An input, as `L['x']` or `L['args'][0]`, or one of its sizes."""
        _require(self._sizes_of_inputs and isinstance(node.slice, ast.Constant))
        key = node.slice.value  # type: ignore[attr-defined]
        _require(type(key) is int or (isinstance(key, str) and _KEY.fullmatch(key)))
        self.visit(node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        _require(self._sizes_of_inputs and ast.unparse(node) in _NOT_FINITE)

    def _is_of_guards(self, function: ast.expr) -> bool:
        if not self._sizes_of_inputs:
            return False
        name = ast.unparse(function)
        if name in _OF_GUARDS or name in _MATH or _SYMBOLIC.fullmatch(name):
            return True
        if not isinstance(function, ast.Attribute):
            return False
        self.visit(function.value)
        return function.attr in _METHODS


def _require(condition: object) -> None:
    if not condition:
        raise UnsafeText


def _check_leaf(name: str, value: object) -> None:
    if name == "Symbol":
        _require(isinstance(value, str) and _NAME.fullmatch(value))
    else:
        _require(len(str(value)) < 40)
        float(str(value))


def _is_small(exponent: ast.expr) -> bool:
    """A symbol, or a number that is small: nothing that is computed."""
    if isinstance(exponent, ast.UnaryOp):
        return _is_small(exponent.operand)
    if isinstance(exponent, ast.Constant):
        return float(exponent.value) <= MAX_EXPONENT  # type: ignore[arg-type]
    if isinstance(exponent, ast.Call) and isinstance(exponent.func, ast.Name):
        if exponent.func.id in _NUMBERS:
            return all(map(_is_small, exponent.args))
        return exponent.func.id == "Symbol"
    return isinstance(exponent, ast.Name)


def _check_spec(spec: Any) -> None:
    """How inputs or outputs are nested."""
    if isinstance(spec, list):
        for entry in spec:
            _check_spec(entry)
    elif isinstance(spec, dict):
        if spec.get("type") not in (*_CONTAINERS, _NAMED_TUPLE):
            raise UnsafeText(f"its inputs or outputs are nested in a {str(spec.get('type'))[:80]!r}")
        context = spec.get("context")
        _check_keys(_parsed(context) if isinstance(context, str) else context)
        _check_spec(spec.get("children_spec"))
    elif not isinstance(spec, (int, type(None))):
        raise UnsafeText("the nesting of its inputs or outputs is no JSON of torch's")


def _check_keys(keys: Any) -> None:
    for key in keys if isinstance(keys, list) else (keys,):
        if not (isinstance(key, (int, type(None))) or (isinstance(key, str) and _KEY.fullmatch(key))):
            raise UnsafeText(f"its inputs or outputs are named {str(key)[:80]!r}; use letters and digits")


def _parsed(text: str) -> Any:
    try:
        return parsed(text)
    except ValueError:
        raise UnsafeText("the nesting of its inputs or outputs is no JSON") from None
