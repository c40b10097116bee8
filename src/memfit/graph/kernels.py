"""The memory use of TensorFlow's kernels on a CPU: outputs that can take an input's place, and scratch.

Everything here is about the default kernels without oneDNN; what others need, `probes` finds out. Formulas
are those of the kernels' own code; `benchmarks/estimate.py` checks them against allocations really made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from memfit.core.records import OpRole
from memfit.private.tensorflow.graph_defs import Maker

Shape = tuple[int, ...]

_ROLES: dict[str, OpRole] = {
    **dict.fromkeys(
        (
            "Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Snapshot",
            "CheckNumerics", "EnsureShape", "Bitcast", "IdentityN",
        ),
        "alias",
    ),
    **dict.fromkeys(("Const", "HostConst"), "constant"),
    "VarHandleOp": "variable",
    "ReadVariableOp": "read",
    "AssignVariableOp": "assign",
    **dict.fromkeys(("AssignAddVariableOp", "AssignSubVariableOp"), "update"),
    **dict.fromkeys(("TensorListReserve", "EmptyTensorList"), "new_list"),
    **dict.fromkeys(("TensorListSetItem", "TensorListPushBack"), "put"),
    "TensorListGetItem": "take",
    "TensorListPopBack": "pop",
    "TensorListFromTensor": "fill",
}  # fmt: skip
_OF_LISTS: dict[str, OpRole] = {"ZerosLike": "fill", "AddN": "join", "AddV2": "join"}
_UPDATES = ("ResourceApply", "ResourceScatter", "ResourceSparseApply")

# Element by element: the output can take the memory of an input of the same shape that nothing else needs.
_UNARY = frozenset({
    "Relu", "Relu6", "Elu", "Selu", "Sigmoid", "Tanh", "Exp", "Log", "Log1p", "Sqrt", "Rsqrt", "Square",
    "Neg", "Abs", "Erf", "Erfc", "Softplus", "Reciprocal", "Inv", "Sin", "Cos", "Floor", "Ceil", "Sign",
    "Softmax", "LogSoftmax", "BiasAdd", "LeakyRelu", "LogicalNot", "Round", "Expm1", "ClipByValue",
    "ZerosLike", "Softsign",
})  # fmt: skip
_BINARY = frozenset({
    "Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "Maximum", "Minimum", "Pow",
    "SquaredDifference", "MulNoNan", "Xdivy", "Xlogy", "FloorDiv", "FloorMod", "Mod", "LogicalAnd",
    "LogicalOr", "Atan2", "ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "SigmoidGrad", "TanhGrad",
    "SqrtGrad", "RsqrtGrad", "InvGrad", "ReciprocalGrad", "SoftplusGrad", "SoftsignGrad", "LeakyReluGrad",
    "AddN",
})  # fmt: skip
_REDUCTIONS = frozenset({"Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm"})

# The executor runs these at once. They say of themselves that they are not expensive.
_CHEAP = frozenset({
    "Const", "HostConst", "Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "ReadVariableOp",
    "Shape", "ShapeN", "Size", "Rank", "NoOp", "Placeholder", "VarHandleOp", "StopGradient",
    "PreventGradient", "AssignVariableOp", "BroadcastGradientArgs", "VariableShape", "EnsureShape",
    "Bitcast", "CheckNumerics", "StatelessRandomGetKeyCounter", "TensorListGetItem", "TensorListSetItem",
    "TensorListPushBack", "TensorListPopBack", "TensorListReserve", "EmptyTensorList", "TensorListLength",
})  # fmt: skip

# Run on a CPU, and seen to need nothing but their outputs, or too little to count.
_WITHOUT_SCRATCH = frozenset({
    "_FusedConv2D", "_FusedMatMul", "_UnaryOpsComposition", "Acos", "Acosh", "Angle", "Asin", "Asinh",
    "Assert", "Atan", "Atanh", "AvgPool", "AvgPool3D", "AvgPool3DGrad", "AvgPoolGrad", "BatchToSpaceND",
    "BesselI0", "BesselI1", "Betainc", "BiasAddGrad", "BitwiseAnd", "BroadcastTo", "Cast", "Cholesky",
    "Complex", "ComplexAbs", "ConcatOffset", "ConcatV2", "Conj", "Conv2D", "Conv3D", "Cosh",
    "CropAndResize", "CropAndResizeGradImage", "Cross", "Cumprod", "Cumsum", "CumulativeLogsumexp",
    "DepthToSpace", "DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput", "Digamma",
    "Dilation2D", "Dilation2DBackpropInput", "DynamicPartition", "DynamicStitch", "Empty", "Equal",
    "Erfinv", "ExtractImagePatches", "FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxArgsGradient", "FFT",
    "FFT2D", "FFT3D", "Fill", "FractionalMaxPool", "FusedBatchNormGradV3", "FusedBatchNormV3", "GatherNd",
    "GatherV2", "Greater", "GreaterEqual", "IFFT", "IFFT2D", "IFFT3D", "Igamma", "IgammaGradA", "Imag",
    "ImageProjectiveTransformV3", "IRFFT", "IRFFT2D", "IsFinite", "IsNan", "L2Loss", "Less", "LessEqual",
    "Lgamma", "LogMatrixDeterminant", "LRN", "LRNGrad", "MatrixBandPart", "MatrixDeterminant",
    "MatrixDiagPartV3", "MatrixDiagV3", "MatrixInverse", "MatrixSetDiagV3", "MatrixSolve",
    "MatrixTriangularSolve", "MaxPool", "MaxPool3D", "MaxPool3DGrad", "MaxPoolGradWithArgmax",
    "MaxPoolWithArgmax", "MirrorPad", "Ndtri", "NonMaxSuppressionV3", "NotEqual", "OneHot", "OnesLike",
    "Pack", "Pad", "PadV2", "Polygamma", "Qr", "RandomGamma", "RandomPoissonV2", "RandomStandardNormal",
    "RandomUniform", "Range", "Real", "ResizeBicubic", "ResizeBicubicGrad", "ResizeBilinear",
    "ResizeBilinearGrad", "ResizeNearestNeighbor", "ResizeNearestNeighborGrad", "ResourceGather",
    "ResourceGatherNd", "ReverseSequence", "ReverseV2", "RFFT", "RFFT2D", "RngReadAndSkip", "Roll",
    "ScatterNd", "SegmentMean", "SegmentSum", "Select", "SelectV2", "SelfAdjointEigV2", "Sinh", "Slice",
    "SpaceToBatchND", "SpaceToDepth", "Split", "SplitV", "StatelessRandomNormalV2",
    "StatelessRandomUniformV2", "StatelessTruncatedNormalV2", "StridedSlice", "StridedSliceGrad", "Svd",
    "Tan", "TensorListElementShape", "TensorListResize", "TensorListStack", "TensorScatterAdd",
    "TensorScatterUpdate", "Tile", "TopKV2", "Transpose", "Unique", "Unpack", "UnsortedSegmentMax",
    "UnsortedSegmentSum", "Where", "Xlog1py", "Zeta",
})  # fmt: skip

# What oneDNN has kernels of its own for.
_ONEDNN = (
    "AvgPool", "BatchMatMul", "Conv2D", "Conv3D", "Depthwise", "Einsum", "FusedBatchNorm", "LRN", "MatMul",
    "MaxPool", "_Fused", "_Mkl",
)  # fmt: skip

_L2_BYTES = 256 << 10  # the sizes that the kernels assume, whatever the machine has
_L3_BYTES = 30 << 20
_L3_BYTES_3D = 256 << 20
_MOST_TIMES_LARGER = 25


@dataclass(frozen=True)
class Signature:
    """An operation's shapes and types; a shape is None where it is not known."""

    kind: str
    inputs: tuple[Shape | None, ...]
    input_types: tuple[str, ...]
    input_bytes: tuple[int, ...]
    outputs: tuple[Shape | None, ...]
    output_types: tuple[str, ...]
    output_bytes: tuple[int, ...]
    attribute: Callable[[str], Any]
    constant: Callable[[int], Any]  # the value of an input, if the graph says it
    threads: int = 1


def role_of(signature: Signature) -> OpRole:
    """The role of an operation by its effect on memory."""
    kind = signature.kind
    if (
        kind in _REDUCTIONS
        and signature.inputs[0] is not None
        and signature.inputs[0] == signature.outputs[0]
    ):
        return "alias"
    if kind.startswith(_UPDATES):
        return "update"
    if signature.output_types[:1] == ("variant",) and kind in _OF_LISTS:
        return _OF_LISTS[kind]
    return _ROLES.get(kind, "compute")


def is_cheap(kind: str) -> bool:
    """Whether the executor runs an operation at once."""
    return kind in _CHEAP


def reuses_of(signature: Signature) -> tuple[tuple[int, ...], int]:
    """The positions of inputs whose memory an output can take, and the position of that output."""
    kind, made = signature.kind, 0
    if kind in _UNARY:
        places: Sequence[int] = (0,)
    elif kind in _BINARY:
        places = range(len(signature.inputs))
    elif kind in ("Select", "SelectV2"):
        places = (1, 2)
    elif kind == "SparseSoftmaxCrossEntropyWithLogits":
        places, made = (0,), 1
    elif kind == "Cast":
        places = (0,)
    else:
        return (), 0
    alike = [
        place
        for place in places
        if signature.inputs[place] is not None
        and signature.inputs[place] == signature.outputs[made]
        and signature.input_types[place] == signature.output_types[made]
    ]
    return tuple(alike), made


def knowledge_of(kind: str, maker: Maker) -> Literal["needs none", "a formula", "nothing"]:
    """The knowledge of an operation's scratch: that it needs none, a formula, or nothing."""
    if is_cheap(kind) or kind in _UNARY or kind in _BINARY:
        return "needs none"
    if maker == "GPU" or (maker == "oneDNN" and kind.startswith(_ONEDNN)):
        return "nothing"
    if kind in _SCRATCH:
        return "a formula"
    return "needs none" if kind in _WITHOUT_SCRATCH else "nothing"


def scratch_of(signature: Signature) -> tuple[int, ...]:
    """The bytes that a kernel needs while it runs; empty where it needs none, or where that is unknown."""
    find = _SCRATCH.get(signature.kind)
    if find is None or None in signature.inputs or None in signature.outputs:
        return ()
    return tuple(size for size in find(signature) if size > 0)


def _conv_shapes(s: Signature) -> tuple[Shape, Shape, Shape]:
    """Input, kernel and output of a convolution, whichever of them an operation makes."""
    x, kernel, y = {
        "Conv": (s.inputs[0], s.inputs[1], s.outputs[0]),
        "Input": (s.outputs[0], s.inputs[1], s.inputs[2] if len(s.inputs) > 2 else None),
        "Filter": (s.inputs[0], s.outputs[0], s.inputs[2] if len(s.inputs) > 2 else None),
    }["Input" if "BackpropInput" in s.kind else "Filter" if "BackpropFilter" in s.kind else "Conv"]
    assert x is not None
    assert kernel is not None
    assert y is not None
    return x, kernel, y


def _conv_backprop(s: Signature) -> list[int]:
    """Patches of several images laid out as a matrix, as many as are thought to fill the cache."""
    images, image_bytes = _images_for(s, _L3_BYTES)
    _, kernel, y = _conv_shapes(s)
    unit = _work_unit(kernel, y)
    alone = y[0] == 1 or unit // s.threads >= _L2_BYTES // _item_bytes(s)
    return [image_bytes if "BackpropInput" in s.kind and alone else images * image_bytes]


def _conv_3d_backprop(s: Signature) -> list[int]:
    """The same for a larger cache; where that is far more than the tensors, the kernel does without."""
    images, image_bytes = _images_for(s, _L3_BYTES_3D)
    tensors = sum(map(prod, _conv_shapes(s))) * _item_bytes(s)
    return [] if images * image_bytes // max(tensors, 1) > _MOST_TIMES_LARGER else [images * image_bytes]


def _images_for(s: Signature, cache_bytes: int) -> tuple[int, int]:
    """The number of images that fill a cache, and the bytes of the patches of one."""
    _, kernel, y = _conv_shapes(s)
    images = -(-(cache_bytes // _item_bytes(s)) // _work_unit(kernel, y))
    return images, prod(y[1:-1]) * prod(kernel[:-1]) * _item_bytes(s)


def _work_unit(kernel: Shape, y: Shape) -> int:
    """The numbers that one image takes: patches, result, and kernel."""
    image, patch, depth = prod(y[1:-1]), prod(kernel[:-1]), kernel[-1]
    return image * patch + image * depth + patch * depth


def _depthwise_filter(s: Signature) -> list[int]:
    _, kernel, y = _conv_shapes(s)
    item = _item_bytes(s)
    return [y[0] * prod(kernel) * item]


def _max_pool_grad(s: Signature) -> list[int]:
    pooled = s.input_bytes[1]
    return [pooled, pooled // _item_bytes(s) * 8]


def _reduction(s: Signature) -> list[int]:
    """The result once more, and the input rearranged where kept and reduced dimensions alternate."""
    shape = s.inputs[0] or ()
    axes = s.constant(1)
    found = [s.output_bytes[0]]
    if axes is not None:
        reduced = {int(axis) % max(1, len(shape)) for axis in axes.ravel()}
        runs: list[bool] = []
        for number, size in enumerate(shape):
            if size != 1 and (not runs or runs[-1] != (number in reduced)):
                runs.append(number in reduced)
        if len(runs) > 3:
            found.append(s.input_bytes[0])
    return found


def _einsum(s: Signature) -> list[int]:
    return [*s.input_bytes[:2], s.output_bytes[0]]


def _matmul(s: Signature) -> list[int]:
    """In half precision the kernel works on copies in float32."""
    if s.output_types[0] not in ("bfloat16", "float16"):
        return []
    return [2 * size for size in (*s.input_bytes[:2], s.output_bytes[0])]


def _item_bytes(s: Signature) -> int:
    count = prod(s.outputs[0] or ())
    return s.output_bytes[0] // count if count else 4


_SCRATCH: dict[str, Callable[[Signature], list[int]]] = {
    "Conv2DBackpropInput": _conv_backprop,
    "Conv2DBackpropFilter": _conv_backprop,
    "Conv3DBackpropInputV2": _conv_3d_backprop,
    "Conv3DBackpropFilterV2": _conv_3d_backprop,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_filter,
    "MaxPoolGrad": _max_pool_grad,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "Einsum": _einsum,
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "BatchMatMul"), _matmul),
    "SparseSoftmaxCrossEntropyWithLogits": lambda s: [s.output_bytes[0]],
    "SoftmaxCrossEntropyWithLogits": lambda s: [s.output_bytes[0]],
}
