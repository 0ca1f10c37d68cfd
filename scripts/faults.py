"""Small faults in the source of the package, for `mutants.py`."""

from __future__ import annotations

import ast
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "torchlift"

_MASKED = "the value is +∞ and its slope 0 wherever the clamp acts"

#: Mutants that compute the same, as (file, function, statement before, statement after): why.
EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    ("liftings/bregman.py", "sigmoid", "c = z.clamp(0, 1)", "c = z.clamp(0, 2)"): _MASKED,
    ("liftings/bregman.py", "sigmoid", "c = z.clamp(0, 1)", "c = z.clamp(-1, 1)"): _MASKED,
    ("liftings/bregman.py", "sigmoid", "c = z.clamp(0, 1)", "c = z.clamp(0)"): _MASKED,
    ("liftings/bregman.py", "tanh", "c = z.clamp(-1, 1)", "c = z.clamp(-1, 2)"): _MASKED,
    ("liftings/bregman.py", "tanh", "c = z.clamp(-1, 1)", "c = z.clamp(-2, 1)"): _MASKED,
    ("liftings/bregman.py", "tanh", "c = z.clamp(-1, 1)", "c = z.clamp(-1)"): _MASKED,
    (
        "liftings/bregman.py",
        "Bregman.value",
        "if torch.compiler.is_compiling() or not bool((psi.sum() + least.sum()).isfinite()):",
        "if torch.compiler.is_compiling() or not bool((psi.sum() - least.sum()).isfinite()):",
    ): "neither sum is −∞, so sum and difference are finite for the same arguments",
    (
        "prox/smooth_rectifiers.py",
        "ExponentialUnit.conjugate",
        "negative = v.clamp(max=0)",
        "negative = v.clamp(max=1)",
    ): "`where` takes the other branch for v > 0",
    (
        "prox/smooth_rectifiers.py",
        "ExponentialUnit.conjugate",
        "return torch.where(v > 0, 0.5 * v.square(), saturating)",
        "return torch.where(v >= 0, 0.5 * v.square(), saturating)",
    ): "both branches and their slopes are 0 at v = 0",
    (
        "prox/saturating.py",
        "Softsign.psi",
        "return infinite_outside(log1p_gap(-c) - 0.5 * c * c, u.abs() < 1)",
        "return infinite_outside(log1p_gap(-c) - 0.5 * c * c, u.abs() < 2)",
    ): "the formula itself is +∞ at c = 1, to which larger |u| are clamped",
    (
        "prox/smooth.py",
        "SmoothActivation.preimage",
        "start = u + torch.zeros_like(step) if isinstance(step, Tensor) else u",
        "start = u - torch.zeros_like(step) if isinstance(step, Tensor) else u",
    ): "the zeros only give the start its shape",
    (
        "prox/smooth_rectifiers.py",
        "Softplus.conjugate",
        "positive = _ZETA_2 + 0.5 * x * x + debye(F.logsigmoid(x.clamp(min=0)))",
        "positive = _ZETA_2 + 0.5 * x * x + debye(F.logsigmoid(x.clamp(min=-1)))",
    ): "`where` takes the other branch for x ≤ 0",
    (
        "solvers/admm.py",
        "ADMM._balance",
        "factor = 2.0 if primal > 10 * dual else 0.5",
        "factor = 2.0 if primal > 9 * dual else 0.5",
    ): "primal residuals between 0.1 and 10 times the dual one have returned before",
    (
        "solvers/drive.py",
        "_Run._loop",
        "raise AssertionError('unreachable: max_steps is at least 1')",
        "(left out)",
    ): "the last step returns",
    (
        "solvers/gauss_newton.py",
        "_Products._pull",
        "return torch.autograd.grad(self.residual, self.x, u, retain_graph=True)[0]",
        "return torch.autograd.grad(self.residual, self.x, u, retain_graph=True)[-1]",
    ): "a tuple of one",
    (
        "solvers/implicit_sgd.py",
        "",
        "def minimise(self, point: Point, block: str, tolerance: float, anchor: Point | None=None, "
        "strength: float=0.0) -> Point | None:",
        "def minimise(self, point: Point, block: str, tolerance: float, anchor: Point | None=None, "
        "strength: float=1.0) -> Point | None:",
    ): "an anchored problem has its own strength",
    (
        "solvers/conjugate_gradient.py",
        "_direct",
        "wide = rows < features",
        "wide = rows <= features",
    ): "for a square matrix both systems have the same size and solution",
    (
        "solvers/pdhg.py",
        "PDHG.measure",
        "value = problem.value(state.point['x'][0], state.products)",
        "value = problem.value(state.point['x'][0])",
    ): "the same products are then made again",
    (
        "solvers/pdhg.py",
        "PDHG.init",
        "if self.tau is not None and self.sigma is not None:",
        "if self.tau is not None or self.sigma is not None:",
    ): "one without the other has been refused",
    (
        "solvers/saddle.py",
        "check_saddle",
        "shapes = [tuple(ax.shape) for ax in problem.forward(point['x'][0])]",
        "shapes = [tuple(ax.shape) for ax in problem.forward(point['x'][-1])]",
    ): "a block with more tensors than one has been refused",
}

BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
}  # fmt: skip
COMPARISON: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
OPPOSITE = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
KEPT_ARGUMENTS = ("device", "strict")
ERRORS = ("invalid_value", "invalid_type", "StepFailure", "SolverError", "NotProximalError", "_refuse")
FOR_TESTS = ("example", "examples")


@dataclass(frozen=True, eq=False)
class Mutant:
    """A node of a syntax tree and what to put in its place."""

    file: str
    tree: ast.Module
    parent: Any
    field: str
    index: int | None
    old: ast.AST
    new: ast.AST
    statement: ast.AST
    lines: range
    function: str  # qualified name of the outermost function, empty for what runs at import
    start: int

    @property
    def key(self) -> tuple[str, str, str, str]:
        """File, function, and the statement without and with the fault."""
        if self.old is self.statement:
            return self.file, self.function, text(self.old), text(self.new)
        before = text(self.statement)
        with self._made():
            return self.file, self.function, before, text(self.statement)

    @property
    def equivalent(self) -> bool:
        """Whether it computes the same: by the list, or as the value of an argument that changes no result."""
        kept = isinstance(self.parent, ast.keyword) and self.parent.arg in KEPT_ARGUMENTS
        return kept or self.key in EQUIVALENT

    def __str__(self) -> str:
        _, _, before, after = self.key
        return f"{self.file}:{self.lines.start} {self.function or 'at import'}: {before}  →  {after}"

    def code(self) -> CodeType:
        """The module with the fault."""
        with self._made():
            return compile(self.tree, PACKAGE / self.file, "exec", dont_inherit=True)

    @contextlib.contextmanager
    def _made(self) -> Iterator[None]:
        self._put(self.new)
        try:
            yield
        finally:
            self._put(self.old)

    def _put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def text(node: ast.AST) -> str:
    """One line of source; only the head of a compound statement."""
    if isinstance(node, ast.Pass):
        return "(left out)"
    return next(line for line in ast.unparse(node).splitlines() if not line.startswith("@"))


@dataclass(frozen=True)
class Place:
    """Where a node is: its statement, its outermost function, and whether it is only ever shown to people."""

    statement: ast.AST | None = None
    lines: range = range(0)
    function: str = ""
    start: int = 0
    prefix: str = ""
    shown: frozenset[str] = frozenset()


def mutants_of(part: str) -> list[Mutant]:
    """All mutants of a part, in the order of the source."""
    found: list[Mutant] = []
    for path in sorted((PACKAGE / part).glob("*.py")):
        if path.stem not in FOR_TESTS:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            file = str(path.relative_to(PACKAGE))
            found += (Mutant(file, tree, *rest) for rest in _below(tree, Place()))
    return found


def _below(node: ast.AST, place: Place) -> Iterator[tuple[Any, ...]]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _without_result(child, place):
                here = _place(child, place, inside_body=field == "body", parent=node)
                for new in variants(child):
                    ast.fix_missing_locations(ast.copy_location(new, child))
                    yield node, field, index, child, new, here.statement, here.lines, here.function, here.start
                if not isinstance(child, ast.Raise | ast.JoinedStr) and not _is_error(child):
                    yield from _below(child, here)


def _place(child: ast.AST, place: Place, *, inside_body: bool, parent: ast.AST) -> Place:
    statement, lines, prefix, shown = place.statement, place.lines, place.prefix, place.shown
    function, start = place.function, place.start
    if inside_body and isinstance(parent, ast.FunctionDef) and not function:
        function = prefix + parent.name
        start = min([parent.lineno, *(each.lineno for each in parent.decorator_list)])
        shown = _only_shown(parent)
    if isinstance(parent, ast.ClassDef):
        prefix = f"{prefix}{parent.name}."
    if isinstance(child, ast.stmt):
        statement = child
        last = child.end_lineno or child.lineno
        if isinstance(child, ast.If | ast.While):
            last = child.test.end_lineno or last
        elif isinstance(child, ast.For | ast.With):
            last = child.body[0].lineno - 1
        lines = range(child.lineno, max(last, child.lineno) + 1)
    return Place(statement, lines, function, start, prefix, shown)


def _without_result(node: ast.AST, place: Place) -> bool:
    """Whether no fault in a node could change a result: examples for tests, and what only error texts use."""
    if isinstance(node, ast.FunctionDef):
        return node.name in FOR_TESTS
    return isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) and t.id in place.shown for t in node.targets)


def _is_error(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS


def _only_shown(function: ast.FunctionDef) -> frozenset[str]:
    """The variables that appear in error texts only."""
    texts = [node for node in ast.walk(function) if _is_error(node) or isinstance(node, ast.Raise)]
    loaded = [Counter(_loads(function)), Counter(name for each in texts for name in _loads(each))]
    return frozenset(name for name, count in loaded[1].items() if count >= loaded[0][name])


def _loads(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """The faults that can be made at a node."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in BINARY and not (isinstance(op, ast.BitOr) and _is_type(left)):
            yield ast.BinOp(left, BINARY[type(op)](), right)
        case ast.AugAssign(target, op, value):
            yield ast.Pass()
            if type(op) in BINARY:
                yield ast.AugAssign(target, BINARY[type(op)](), value)
        case ast.UnaryOp(ast.USub() | ast.Not() | ast.Invert(), operand):
            yield operand
        case ast.Compare(left, ops, others):
            for i, op in enumerate(ops):
                for other in COMPARISON[type(op)]:
                    yield ast.Compare(left, [*ops[:i], other(), *ops[i + 1 :]], others)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(float(value)):
            yield from (ast.Constant(2 * value), ast.Constant(-value)) if value else (ast.Constant(1.0),)
        case ast.If(test, body, otherwise) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, otherwise)
        case ast.IfExp(test, body, otherwise) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, otherwise)
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.Call() if not _is_error(node):
            yield from _calls(node)


def _is_type(node: ast.AST) -> bool:
    """Whether a name is that of a class, as in `Tensor | None`."""
    return isinstance(node, ast.Name) and (node.id[0].isupper() or node.id in ("bool", "float"))


def _calls(call: ast.Call) -> Iterator[ast.Call]:
    """min for max, and each argument left out that may be one too many."""
    func, args, keywords = call.func, call.args, call.keywords
    if isinstance(func, ast.Name) and func.id in OPPOSITE:
        yield ast.Call(ast.Name(OPPOSITE[func.id], ast.Load()), args, keywords)
    if isinstance(func, ast.Attribute) and func.attr in OPPOSITE:
        yield ast.Call(ast.Attribute(func.value, OPPOSITE[func.attr], ast.Load()), args, keywords)
    if len(args) > 1 and not any(isinstance(each, ast.Starred) for each in args):
        yield ast.Call(func, args[:-1], keywords)
    for i, keyword in enumerate(keywords):
        if keyword.arg is not None and keyword.arg not in KEPT_ARGUMENTS:
            yield ast.Call(func, args, keywords[:i] + keywords[i + 1 :])
            if keyword.arg in OPPOSITE:
                renamed = ast.keyword(OPPOSITE[keyword.arg], keyword.value)
                yield ast.Call(func, args, [*keywords[:i], renamed, *keywords[i + 1 :]])
