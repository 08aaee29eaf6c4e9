"""The width of attention: how many numbers each head has for a query, a key and a value. All heads lose the same places.

Heads are found by their operator. Its queries, keys and values are followed back to the linear layers that make them, and its
output on to the one that reads it, through operators that only turn and split. Whether the model's own code goes along with
narrower heads is found out by running it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flatout.packaging.program import Node, Program
from flatout.shrinking.training.cuts import MODEL, Cut, Width
from flatout.shrinking.training.graph import Shape, node_at, reads, used_nodes

_TURNS = {
    "chunk", "split", "split_with_sizes", "unbind", "select", "unflatten", "view", "reshape", "_unsafe_view", "transpose",
    "permute", "flatten", "clone", "contiguous", "getitem",
}  # fmt: skip

WeightOf = Callable[[Node, int], str | None]


def heads_of(program: Program, shapes: Sequence[Shape], weight_of: WeightOf) -> list[Width]:
    """Those of each attention that can be followed."""
    used = used_nodes(program)
    attentions = [place for place in sorted(used) if _short(program.nodes[place]) == "scaled_dot_product_attention"]
    found = [_heads(program, shapes, weight_of, used, place) for place in attentions]
    return [width for width in found if width is not None]


def _heads(program: Program, shapes: Sequence[Shape], weight_of: WeightOf, used: set[int], place: int) -> Width | None:
    node = program.nodes[place]
    given = [node_at(node.args, number) for number in range(3)]
    sources = [_source(program, number) for number in given]
    reader = _reader(program, used, place)
    if reader is None or None in given or None in sources or len(node.args) > 6 or "scale" in (node.kwargs or {}):
        return None
    parts = [shapes[number] for number in given if number is not None]
    size = parts[0][-1]
    if any(len(part) != 4 or part[-1] != size for part in parts):
        return None
    counts = [part[1] for part in parts]  # heads; of keys and values there may be fewer
    makers = _makers(program, [number for number in sources if number is not None], counts, size, shapes, weight_of)
    read = weight_of(program.nodes[reader], 1)
    if makers is None or read is None or shapes[_weight_node(program.nodes[reader])][1] != counts[0] * size:
        return None
    layer = makers[0].weight.removeprefix(MODEL).rpartition(".")[0]
    return Width(layer, size, makers, [Cut(read, 1, 1, counts[0])])


def _makers(
    program: Program, sources: Sequence[int], counts: Sequence[int], size: int, shapes: Sequence[Shape], weight_of: WeightOf
) -> list[Cut] | None:
    """One layer for queries, keys and values, or one for each."""
    if len(set(sources)) == 1:
        layers = [(sources[0], 3 * counts[0], 3)] if len(set(counts)) == 1 else []
    elif len(set(sources)) == 3:
        layers = [(one, count, int(number == 0)) for number, (one, count) in enumerate(zip(sources, counts, strict=True))]
    else:
        layers = []
    made: list[Cut] = []
    for place, repeat, queries in layers:
        node = program.nodes[place]
        names = [weight_of(node, number) for number in (1, 2) if node_at(node.args, number) is not None]
        if None in names or shapes[_weight_node(node)][0] != repeat * size:
            return None
        made += [Cut(name, 0, 1, repeat, queries) for name in names if name is not None]
    return made or None


def _source(program: Program, number: int | None) -> int | None:
    """The linear layer whose output this is, turned and split."""
    while number is not None:
        node = program.nodes[number]
        if _short(node) == "linear":
            return number
        number = node_at(node.args, 0) if _short(node) in _TURNS else None
    return None


def _reader(program: Program, used: set[int], number: int) -> int | None:
    """The one linear layer that reads this value, turned."""
    while True:
        users = [place for place in sorted(used) if number in reads(program.nodes[place])]
        if len(users) != 1:
            return None
        number = users[0]
        node = program.nodes[number]
        if _short(node) == "linear":
            return number
        if _short(node) not in _TURNS:
            return None


def _weight_node(node: Node) -> int:
    found = node_at(node.args, 1)
    return -1 if found is None else found


def _short(node: Node) -> str:
    return (node.operator or "").removeprefix("aten.").removeprefix("operator.").partition(".")[0]
