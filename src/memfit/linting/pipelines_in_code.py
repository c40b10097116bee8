"""Chains of `tf.data` transformations, followed from their end to their source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from memfit.linting.parsed_module import last_name
from memfit.linting.values import DATASET_METHODS, Values, definition

_LONGEST = 100
_TELLING = {"batch", "padded_batch", "prefetch", "shuffle", "interleave", "unbatch"}
_DECODERS = (
    "tensorflow.io.decode_jpeg", "tensorflow.io.decode_png", "tensorflow.io.decode_image",
    "tensorflow.io.decode_bmp", "tensorflow.io.decode_gif", "tensorflow.io.decode_and_crop_jpeg",
    "tensorflow.image.", "tensorflow.audio.decode_wav", "cv2.imread",
    "keras.utils.load_img", "keras.preprocessing.image.load_img", "PIL.Image.open",
)  # fmt: skip
_DECODING_NAMES = re.compile(
    r"decode_?(jpe?g|png|im|audio|wav)|(load|read|parse|process)_(and_\w+_)?(im|img)"
)
_IMAGE_SOURCES = ("keras.utils.image_dataset_from_directory", "keras.utils.audio_dataset_from_directory")


@dataclass(frozen=True)
class Pipeline:
    """A source, if it is known, and the transformations behind it, the first one first."""

    source: ast.Call | None
    source_name: str
    steps: tuple[ast.Call, ...]

    def names(self) -> list[str]:
        """The names of the transformations."""
        return [step.func.attr for step in self.steps if isinstance(step.func, ast.Attribute)]

    def named(self, *names: str) -> Iterator[ast.Call]:
        """The transformations with these names."""
        return (step for step, name in zip(self.steps, self.names(), strict=True) if name in names)

    @property
    def is_batched(self) -> bool:
        """Whether its elements are batches at the end."""
        batched = self.source_name in _IMAGE_SOURCES and not _has_no_batches(self.source)
        for name in self.names():
            batched = name in ("batch", "padded_batch", "ragged_batch") or (batched and name != "unbatch")
        return batched


def pipeline_of(values: Values, node: ast.AST) -> Pipeline | None:
    """The pipeline that an expression is the end of; None where it may be something else."""
    steps: list[ast.Call] = []
    end: ast.AST | None = node
    for _ in range(_LONGEST):
        if isinstance(end, ast.Name):
            binding = values.module.binding(end)
            if binding is None or binding.how != "whole":
                break
            end = binding.value
        elif _is_step(values, end) and isinstance(end, ast.Call) and isinstance(end.func, ast.Attribute):
            steps.insert(0, end)
            end = end.func.value
        else:
            break
    is_source = (
        isinstance(end, ast.Call) and values.kind(end) == "dataset" and bool(values.module.called(end))
    )
    source = end if is_source and isinstance(end, ast.Call) else None
    found = Pipeline(source, values.module.called(source) if source is not None else "", tuple(steps))
    return found if source is not None or _is_dataset_like(values, found) else None


def _is_step(values: Values, node: ast.AST | None) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in DATASET_METHODS and not values.module.called(node)


def _is_dataset_like(values: Values, pipeline: Pipeline) -> bool:
    """Where a data set comes from elsewhere, two of its methods in a row give it away."""
    names = pipeline.names()
    return values.module.imports.uses_tensorflow and len(names) >= 2 and bool(_TELLING & set(names))


def _has_no_batches(source: ast.Call | None) -> bool:
    keywords = source.keywords if source is not None else []
    return any(
        one.arg == "batch_size" and isinstance(one.value, ast.Constant) and one.value.value is None
        for one in keywords
    )


def decodes(values: Values, pipeline: Pipeline) -> ast.Call | None:
    """The transformation or source that makes decoded images or sound out of files."""
    if pipeline.source_name in _IMAGE_SOURCES:
        return pipeline.source
    for step in pipeline.named("map", "interleave", "flat_map"):
        if step.args and _decodes(values, step.args[0], depth=3):
            return step
    return None


def _decodes(values: Values, function: ast.AST, depth: int) -> bool:
    body = function if isinstance(function, ast.Lambda) else definition(values.module, function)
    if body is None or not depth:
        qualified = values.module.qualified(function)
        return qualified.startswith(_DECODERS) or bool(_DECODING_NAMES.search(last_name(function).lower()))
    for call in values.module.inside(body, ast.Call):
        if values.module.called(call).startswith(_DECODERS):
            return True
        if not values.module.called(call) and _decodes(values, call.func, depth - 1):
            return True
    return False


def steps_called(values: Values, *names: str) -> Iterator[tuple[ast.Call, Pipeline]]:
    """All transformations with these names, with the pipeline before them."""
    for call in values.module.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in names and _is_step(values, call):
            whole = pipeline_of(values, call)
            if whole is not None and whole.steps:
                yield call, Pipeline(whole.source, whole.source_name, whole.steps[:-1])


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """An argument by its place or its name."""
    if len(call.args) > position and not any(isinstance(one, ast.Starred) for one in call.args):
        return call.args[position]
    return next((one.value for one in call.keywords if one.arg == name), None)


def number(node: ast.AST | None) -> float | None:
    """The value of a number that is written out."""
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    ):
        return node.value
    return None
