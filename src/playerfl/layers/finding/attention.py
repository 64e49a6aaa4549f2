"""Attention, wherever it is computed: from the softmax back to the projections that feed it, and on to the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from torch import nn

from playerfl.layers.finding.flow import SOFTMAX, Flow, bends, kernel_of, passes, set_of
from playerfl.layers.finding.naming import common_module
from playerfl.layers.finding.regions import Block, meeting_of
from playerfl.layers.finding.trace import Step
from playerfl.layers.finding.units import Unit, mixes


def attentions(flow: Flow, model: nn.Module) -> Iterator[Block]:
    """The projections of each attention: those of queries, keys and values, and the one that reads the result."""
    found = [(products, _operands(flow, products)) for step in flow.steps if (products := _products(flow, step))]
    # In a loop, keys and values that are computed once are read by every turn.
    meant: dict[frozenset[str], set[int]] = defaultdict(set)
    for products, reached in found:
        meant[_names(reached)] |= {product.number for product in products}
    for products, reached in found:
        result = products[-1]
        projections = [s for s in reached if _projects(s) and _only_feeds(flow, s, meant[_names(reached)])]
        if not projections:
            continue
        others = [s for s in reached if s not in projections and _projects(s)]
        projections += [s for s in others if _belongs(flow, s, products, projections)]
        output = _output_projection(flow, result, projections)
        if output is not None and _is_of_another(model, result, output):
            output = None  # the next of several equal attentions without an output projection (GAT)
        members = [*projections, *([output] if output else [])]
        if units := flow.first_used(set_of(members)):
            yield Block(units, "attention", ends={members[-1].number}, attends=True)


def _operands(flow: Flow, products: list[Step]) -> list[Step]:
    """The nearest steps that the products of an attention read."""
    return flow.backward([number for product in products for number in product.inputs], passes)


def _names(steps: list[Step]) -> frozenset[str]:
    return frozenset(step.unit.name for step in steps if step.unit is not None)


def is_attention(step: Step) -> bool:
    """Whether a step is torch's attention in one operation; a bias on its scores is then one of its inputs."""
    return step.unit is None and "attention" in step.operation


def _products(flow: Flow, step: Step) -> list[Step]:
    """The products in which queries meet keys, and weights meet values; one step if torch does both at once."""
    if step.unit is not None:
        return []
    if is_attention(step):
        return [step] if step.inputs else []
    if step.operation not in SOFTMAX:
        return []
    after = [s for s in flow.forward(flow.readers[step.number], _without_product) if _is_product(s)]
    before = [s for s in flow.backward(step.inputs, _without_product) if _is_product(s)]
    return [*before, *after[:1]] if after else []


def _is_product(step: Step) -> bool:
    return step.unit is None and mixes(step.operation) and len(step.inputs) > 1


def _without_product(step: Step) -> bool:
    return step.unit is None and not mixes(step.operation)


def _projects(step: Step) -> bool:
    """A matrix product or a convolution; neither a table nor a recurrent network."""
    unit = kernel_of(step)
    return unit is not None and unit.role == "kernel" and _is_linear(unit.operations)


def _is_linear(operations: set[str]) -> bool:
    return any(map(mixes, operations)) and not operations & {"sigmoid", "tanh", "embedding"}


def _only_feeds(flow: Flow, step: Step, products: set[int]) -> bool:
    """Whether a projection has no other reader than this attention."""
    reached = flow.forward(flow.readers[step.number], lambda s: passes(s) and s.number not in products)
    return bool(reached) and all(s.number in products for s in reached)


def _belongs(flow: Flow, step: Step, products: list[Step], projections: list[Step]) -> bool:
    """Whether a projection has no other readers than an attention, the shortcut around it (Set Transformer), and
    projections in its own module (Funnel's queries, which are also turned by a matrix for the positions)."""
    assert step.unit is not None
    around = step.unit.path.rpartition(".")[0]
    inside = [p for p in projections if around and p.unit is not None and p.unit.path.rpartition(".")[0] == around]

    def in_attention(other: Step) -> bool:
        is_end = meeting_of(other) == "sum" and flow.depends(other.number, products[-1].number)
        return is_end or other in products or other in inside

    reached = flow.forward(flow.readers[step.number], lambda s: passes(s) and not in_attention(s))
    return bool(reached) and all(map(in_attention, reached))


def _output_projection(flow: Flow, result: Step, projections: list[Step]) -> Step | None:
    """The kernel that alone reads the result and leads back to the width of the input, or that is a neighbour of the
    other projections in the same module, perhaps in a wrapper with a norm. A classifier behind an attention pooling is
    neither."""
    reached = flow.forward(flow.readers[result.number], lambda s: passes(s) and meeting_of(s) is None)
    if len(reached) != 1 or not _projects(reached[0]):
        return None
    output = reached[0]
    assert output.unit is not None
    parents = {s.unit.path.rpartition(".")[0] for s in projections if s.unit is not None}
    beside = parents == {output.unit.path.rpartition(".")[0]} != {""}
    if beside or _is_alone_in(flow, common_module([result.where, *parents]), output.unit):
        return output
    widths = {flow.steps[number].shape[-1:] for s in projections for number in s.inputs[:1]}
    straight = flow.forward(flow.readers[result.number], lambda s: passes(s) and not bends(s)) == [output]
    return output if straight and output.shape[-1:] in widths else None


def _is_alone_in(flow: Flow, module: str, unit: Unit) -> bool:
    """Whether a unit is in a module, and the only kernel of the part of it that it is in."""
    part = unit.path.removeprefix(f"{module}.").partition(".")[0]
    around = f"{module}.{part}."
    inside = [name for name in flow.kernels if f"{flow.units[name].path}.".startswith(around)]
    return bool(module) and inside == [unit.name]


def _is_of_another(model: nn.Module, result: Step, output: Step) -> bool:
    """Whether a projection is inside another module of the class in which an attention runs."""
    kind = type(model.get_submodule(result.where))
    assert output.unit is not None
    return any(
        type(module) is kind
        and output.unit.path.startswith(f"{path}.")
        and not f"{result.where}.".startswith(f"{path}.")
        for path, module in model.named_modules()
        if path
    )
