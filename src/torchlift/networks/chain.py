"""Chains of affine maps and activations, with or without skip connections: what an `nn.Sequential` can say."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from torchlift.core.checks import Shape, check_instance, check_shape
from torchlift.core.errors import NotRepresentableError, invalid_value
from torchlift.networks.base import Network
from torchlift.networks.dense_chain import DenseStack, dense_chain
from torchlift.networks.form import UnifiedForm, assemble
from torchlift.networks.reader import Reader, Site, Term, bias_of, prepare, refuse
from torchlift.networks.stacks import ActivationList, AffineStack, maps_of, stack_layers
from torchlift.operators import Compose, Context, DenseRun, Identity, LinearOperator, Scaled, Sum
from torchlift.prox import ActivationModule, ProximalActivation


class ChainLayer(NamedTuple):
    """One linear map of a chain at the current parameters."""

    operator: LinearOperator
    """The map; its tensors are views of the stacked parameters, without a tape."""
    bias: Tensor | None
    """A view too, shaped to broadcast over one sample."""
    name: str | None
    """Its stack and its place there, such as "hidden.0[2]"; None for maps without weights."""


class Chain(Network):
    """A network read from an `nn.Sequential` of linear modules, proximal activations and residual blocks.

    The weights are copied. Neighbouring dense layers of equal shape share one
    stacked parameter, so that all of them can be evaluated in one product.

    Arguments:
        sequential: the modules; see `lift` for what can be represented.
        input_shape: shape of one input; needed unless the first module is `nn.Linear`.
    """

    def __init__(self, sequential: nn.Sequential, input_shape: int | Iterable[int] | None = None) -> None:
        check_instance("lift", sequential, nn.Sequential, "an nn.Sequential", "Wrap the module: nn.Sequential(module).")
        plain = prepare(sequential)
        reader = Reader(_input_shape(plain, input_shape))
        reader.read(list(plain))
        super().__init__(reader.shapes[0], reader.shape)
        kinds = {(p.dtype, p.device) for p in plain.parameters()}
        if len(kinds) > 1:
            hint = "Move the whole model with `.to(dtype, device)`."
            invalid_value("lift", "parameters of one dtype on one device", sorted(map(str, kinds)), hint)
        self._output = (reader.source, reader.term())
        # Layers with weights keep only their structure here; `_current` puts the parameters in.
        self._fixed = tuple(layer.operator.map_tensors(lambda _, t: t.to("meta")) for layer in reader.layers)
        self._sites = tuple(reader.sites)
        self._state_shapes = tuple(reader.shapes)
        self._places: dict[int, tuple[str, int, int]] = {}
        for role, used in _roles(reader, self._output[1]).items():
            stacks, places = stack_layers([reader.layers[k] for k in used])
            self.add_module(role, stacks)
            self._places |= {k: (role, *place) for k, place in zip(used, places, strict=True)}
        self.activation = ActivationList([site.activation for site in self._sites])
        self._thresholds = [
            (name, place) for name, m in plain.named_modules()
            if isinstance(m, ActivationModule) and (place := self.activation.place_of(m.activation)) is not None
        ]  # fmt: skip
        # The skeleton keeps the structure for `to_sequential`; on "meta" it holds no numbers.
        owners = {id(layer.module): k for k, layer in enumerate(reader.layers) if layer.module is not None}
        self._owners = [(name, owners[id(m)]) for name, m in plain.named_modules() if id(m) in owners]
        self._skeleton = (plain.to("meta"),)
        rows = sum(run.count for run in self.dense_runs())
        self._is_dense_chain = rows == len(self._sites) and self.output_run() is not None

    def operators(self) -> UnifiedForm:
        operators, biases = self._current()

        def build(term: Term) -> LinearOperator:
            chain = [operators[k] for k in reversed(term.layers) if not isinstance(operators[k], Identity)]
            chain = chain or [operators[term.layers[0]]]
            product = chain[0] if len(chain) == 1 else Compose(*chain)
            return product if term.factor == 1.0 else Scaled(product, term.factor)

        W: dict[tuple[int, int], LinearOperator] = {}
        V, M, b = {}, {}, []
        for j, site in enumerate(self._sites):
            total: Tensor | None = None
            for k, term in site.reads:
                block = build(term)
                W[j, k] = Sum(W[j, k], block) if (j, k) in W else block
                bias = bias_of(operators, biases, term)
                total = bias if total is None else total if bias is None else total + bias
            b.append(total)
            V |= {(j, k): build(term) for k, term in site.outputs.items()}
            if site.skip is not None:
                M[j, site.skip] = Scaled(Identity(self._state_shapes[site.skip]), -1.0)
        source, term = self._output
        d = bias_of(operators, biases, term)
        return assemble(self.in_shape, W, b, self.activations, {source: build(term)}, d, V, M, self.like)

    @property
    def activations(self) -> tuple[ProximalActivation, ...]:
        return self.activation.current() if len(self.activation) else self.activation.fixed

    def dense_runs(self) -> tuple[DenseRun, ...]:
        """Stacks whose layers each stand alone in one row of W, in consecutive rows of a plain chain."""
        rows: dict[int, list[int]] = {}
        for j, site in enumerate(self._sites):
            plain = site.skip is None and not site.outputs
            for k, term in site.reads:
                alone = plain and len(site.reads) == 1 and k == j and term.factor == 1.0 and len(term.layers) == 1
                for layer in term.layers:
                    rows.setdefault(layer, []).append(j if alone else -1)
        members: dict[int, list[list[int]]] = {}
        for layer, (role, group, _) in self._places.items():
            if role == "hidden":
                members.setdefault(group, []).append(rows[layer])
        runs = []
        for group, lines in members.items():
            start = lines[0][0]
            if start >= 0 and lines == [[start + i] for i in range(len(lines))] and self._stack("hidden", group).dense:
                runs.append(self._run("hidden", group, start))
        return tuple(runs)

    def output_run(self) -> DenseRun | None:
        source, term = self._output
        plain = source == len(self._sites) and len(term.layers) == 1 and term.layers[0] in self._places
        return self._run("output", 0, source) if plain and self._stack("output", 0).dense else None

    def forward(self, y: Tensor, context: Context = None) -> Tensor:
        """N(y), layer by layer: the same as `states(y).output` without assembling block operators."""
        if self._is_dense_chain:
            stacks = self.dense_stacks()
            first = stacks[0].weight
            fits = isinstance(y, Tensor) and tuple(y.shape[1:]) == self.in_shape and y.shape[0] != 0
            if not fits or (y.dtype, y.device) != (first.dtype, first.device):
                self.check_input(y)  # says what is wrong
            return dense_chain(y, stacks, self.activations)
        self.check_input(y)
        operators, biases = self._current()
        stacks = {k: self._stack(role, group) for k, (role, group, _) in self._places.items()}

        def apply(term: Term, x: Tensor, bias: Tensor | None) -> Tensor:
            """The maps of a term applied to x in the order of its block operator, so that both give the same bits."""
            *inner, last = [k for k in term.layers if not isinstance(operators[k], Identity)] or term.layers[:1]
            for k in (*inner, last):
                if k in stacks and torch.is_grad_enabled():
                    for observer in stacks[k].observers:
                        observer(self._places[k][2], x)
                if k != last:
                    x = operators[k].forward(x, context)
            if term.factor == 1.0:
                return operators[last].affine(x, bias, context)
            scaled = term.factor * operators[last].forward(x, context)
            return scaled if bias is None else scaled + bias

        def row(reads: Sequence[tuple[Term, Tensor]], bias: Tensor | None) -> Tensor:
            """The sum of all terms; the bias joins the first."""
            first, *rest = reads
            return _sum([apply(*first, bias), *(apply(term, x, None) for term, x in rest)])

        u, z = [y], []
        for j, (site, activation) in enumerate(zip(self._sites, self.activations, strict=True)):
            terms = (bias_of(operators, biases, term) for _, term in site.reads)
            constants = [constant for constant in terms if constant is not None]
            z.append(activation(row([(term, u[k]) for k, term in site.reads], _sum(constants) if constants else None)))
            driven = row([(term, z[k]) for k, term in site.outputs.items()], None) if site.outputs else z[j]
            u.append(driven if site.skip is None else driven + u[site.skip])
        source, term = self._output
        return apply(term, u[source], bias_of(operators, biases, term))

    def dense_stacks(self) -> list[DenseStack]:
        """The stacks of a chain of dense layers, from input to output."""
        stacks = [cast("AffineStack", stack) for role in ("hidden", "output") for stack in self.get_submodule(role)]  # type: ignore[attr-defined]
        return [DenseStack(stack.linear.get_parameter("weight"), stack.bias, stack.observers) for stack in stacks]

    @property
    def sites(self) -> tuple[Site, ...]:
        """How the layers are wired, one site per activation; terms count the layers as `layers` does."""
        pairs = zip(self._sites, self.activations, strict=True)
        return tuple(replace(site, activation=activation) for site, activation in pairs)

    @property
    def output_term(self) -> Term:
        """The layers that make K."""
        return self._output[1]

    def layers(self) -> tuple[ChainLayer, ...]:
        """All linear maps, through which the parameters can be read and overwritten."""
        with torch.no_grad():
            pairs = zip(*self._current(), strict=True)
        names = {k: f"{role}.{group}[{index}]" for k, (role, group, index) in self._places.items()}
        layers = []
        for k, (operator, bias) in enumerate(pairs):
            detached = operator.map_tensors(lambda _, tensor: tensor.detach())
            layers.append(ChainLayer(detached, None if bias is None else bias.detach(), names.get(k)))
        return tuple(layers)

    @torch.no_grad()
    def load(self, sequential: nn.Sequential) -> None:
        """Copy in the weights of the `nn.Sequential` that this chain was read from, or of one like it.

        Batch norms are refused: a chain holds them folded into other weights.
        """
        for parameter, place in self._pairs("Chain.load", sequential):
            place.copy_(parameter.reshape(place.shape))

    @torch.no_grad()
    def load_back(self, module: nn.Module) -> None:
        """Write the weights into the `nn.Sequential` that this chain was read from, or one like it.

        Batch norms are refused, as in `load`. `lift(module, share=True)` keeps them.
        """
        for parameter, place in self._pairs("load_back module", module):
            parameter.copy_(place.reshape(parameter.shape))

    def _pairs(self, where: str, module: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """(parameter of the module, its place in a stacked parameter) for all of them."""
        parameters, slots = list(_own_parameters(module)), list(self._slots())
        shapes, expected = [tuple(p.shape) for p in parameters], [tuple(shape) for *_, shape in slots]
        if shapes != expected:
            invalid_value(where, f"parameters of shapes {expected}", shapes, "Lift the module anew.")
        places = [_entry(self.get_parameter(name).detach(), index) for _, name, index, _ in slots]
        return list(zip(parameters, places, strict=True))

    def __repr__(self) -> str:
        """The modules as torch shows them, under the name of the architecture."""
        return repr(self._skeleton[0]).replace("Sequential(", f"{type(self).__name__}(", 1)

    def scatter(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{parameter of `to_sequential()`: tensor} from {stacked parameter: tensor}, in the order of its parameters.

        Stacked parameters that are not given are left out. The tensors are views.
        """
        return {
            plain: _entry(gradients[name], index).reshape(shape)
            for plain, name, index, shape in self._slots() if name in gradients
        }  # fmt: skip

    def slots(self) -> Iterator[tuple[str, str, int, torch.Size]]:
        """(parameter of the plain `nn.Sequential`, stacked parameter, index, shape) for all weights and biases."""
        for plain, name, index, shape in self._slots():
            if index is not None:
                yield plain, name, index, shape

    def _slots(self) -> Iterator[tuple[str, str, int | None, torch.Size]]:
        """What `slots` gives, and the thresholds, whose index is None: they are not stacked. In the plain order."""
        owners, thresholds = dict(self._owners), dict(self._thresholds)
        for module, part in self._skeleton[0].named_modules():
            for name, parameter in part.named_parameters(recurse=False):
                if module in thresholds:
                    yield f"{module}.{name}", f"activation.{thresholds[module]}.{name}", None, parameter.shape
                else:
                    role, group, index = self._places[owners[module]]
                    stacked = "bias" if name == "bias" else f"linear.{name}"
                    yield f"{module}.{name}", f"{role}.{group}.{stacked}", index, parameter.shape

    def _stack(self, role: str, group: int) -> AffineStack:
        return cast("AffineStack", self.get_submodule(f"{role}.{group}"))

    def _run(self, role: str, group: int, start: int) -> DenseRun:
        stack = self._stack(role, group)
        weight = stack.linear.get_parameter("weight")
        return DenseRun(start, weight, stack.bias, f"{role}.{group}.linear.weight", f"{role}.{group}.bias")

    def to_sequential(self, context: Context = None) -> nn.Sequential:
        """A plain `nn.Sequential` with a copy of the current weights."""
        operators, biases = self._current()
        some = next(self.parameters(), torch.empty(0))
        plain = copy.deepcopy(self._skeleton[0]).to_empty(device=some.device).to(some.dtype)
        with torch.no_grad():
            for name, k in self._owners:
                module = plain.get_submodule(name)
                module.get_parameter("weight").copy_(operators[k].tensors()["weight"])
                if (bias := biases[k]) is not None:
                    module.get_parameter("bias").copy_(bias.flatten())
            for name, place in self._thresholds:
                plain.get_submodule(name).load_state_dict(self.activation[place].state_dict())
        return plain.train(self.training)

    def _current(self) -> tuple[list[LinearOperator], list[Tensor | None]]:
        """Operator and bias of each layer at the current parameters."""
        operators = list(self._fixed)
        biases: list[Tensor | None] = [None] * len(operators)
        maps = {role: maps_of(self.get_submodule(role)) for role in ("hidden", "coupling", "output")}
        for layer, (role, group, index) in self._places.items():
            operators[layer], biases[layer] = maps[role][group][index]
        return operators, biases


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    """The sum of one or more tensors."""
    return reduce(torch.add, tensors)


def _entry(stacked: Tensor, index: int | None) -> Tensor:
    return stacked if index is None else stacked[index]


def _own_parameters(sequential: nn.Module) -> Iterator[Tensor]:
    """The parameters of a Sequential without batch norms, whose order is that of a chain read from it."""
    for where, module in sequential.named_modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            refuse(where, module, "its weights are folded into others", "Fold it for good: lift(...).to_sequential().")
        yield from module.parameters(recurse=False)


def _input_shape(plain: nn.Sequential, given: int | Iterable[int] | None) -> Shape:
    if given is not None:
        return check_shape("input_shape", given)
    if len(plain) == 0:
        invalid_value("lift", "at least one module", "an empty nn.Sequential")
    first = next(m for m in plain.modules() if not list(m.children()))
    if isinstance(first, nn.Linear):
        return (first.in_features,)
    hint = "Try lift(module, input_shape=(channels, height, width))."
    invalid_value("lift", f"input_shape, because {type(first).__name__} does not tell it", "nothing", hint)


def _roles(reader: Reader, output: Term) -> dict[str, list[int]]:
    """Which layers with weights stand in W, in V and in K."""
    roles = {
        "hidden": [term for site in reader.sites for _, term in site.reads],
        "coupling": [term for site in reader.sites for term in site.outputs.values()],
        "output": [output],
    }
    used = {
        role: list(dict.fromkeys(k for term in terms for k in term.layers if reader.layers[k].module is not None))
        for role, terms in roles.items()
    }
    everywhere = [k for layers in used.values() for k in layers]
    twice = next((k for k in everywhere if everywhere.count(k) > 1), None)
    if twice is not None:
        name = type(reader.layers[twice].module).__name__
        raise NotRepresentableError(f"lift: one {name} module stands in two of W, V and K. Copy it.")
    return used
