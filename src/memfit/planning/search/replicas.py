"""The lever that spreads a batch over devices: each has all weights and a share of the samples."""

from __future__ import annotations

import dataclasses

from memfit.core.records import Op, Program
from memfit.planning.search.micro_batches import regions_of

_SECONDS = 1e-4  # of a sum over replicas, roughly; links differ


def on_replicas(program: Program) -> Program:
    """A step on one replica's share: once it has all gradients, they are summed over all replicas.

    A sum is a tensor of its own, so that gradients are there twice for a while.
    """
    graph, regions = program.graph, regions_of(program)
    sizes, ops = list(graph.tensors), list(graph.ops)
    makers, summed = graph.makers, dict[int, int]()
    complete = len(ops)
    ops.append(Op("NoOp", after=tuple(sorted({makers[one] for one in regions.gradients})), cheap=True))
    for gradient in regions.gradients:
        summed[gradient] = len(sizes)
        sizes.append(sizes[gradient])
        ops.append(
            Op(
                "CollectiveReduceV2",
                inputs=(gradient,),
                outputs=(summed[gradient],),
                after=(complete,),
                seconds=_SECONDS,
                part="gradients",
                is_float=True,
            )
        )
    for number in regions.update:
        inputs = tuple(summed.get(tensor, tensor) for tensor in ops[number].inputs)
        ops[number] = dataclasses.replace(ops[number], inputs=inputs)
    return dataclasses.replace(
        program, graph=dataclasses.replace(graph, ops=tuple(ops), tensors=tuple(sizes))
    )
