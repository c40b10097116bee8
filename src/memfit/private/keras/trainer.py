"""A compiled model: its parts, its optimizers and their updates, and Keras' loop over its batches."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from memfit.private.keras.layers import all_layers
from memfit.private.patching import overridden, replaced
from memfit.private.tensorflow.variables import backing_variable

# Keras calls a model of its user's so often to find out what its layers look like, before the call that runs.
CALLS_THAT_BUILD = 2


def optimizer_variables(model: Any) -> list[Any]:
    """The variables of a compiled model's optimizer, as far as there are any yet."""
    optimizer = getattr(model, "optimizer", None)
    return [] if optimizer is None else list(optimizer.variables)


def build_everything(model: Any, batch: Any) -> None:
    """Create all variables of model, loss, metrics and optimizer from the shapes of a batch.

    The batch dimension stays open: a model that is built now must take batches of every size later.
    """

    def symbolic(leaf: Any) -> Any:
        if leaf is None:
            return None
        sparse = isinstance(leaf, tf.SparseTensor)
        return keras.KerasTensor((None, *leaf.shape[1:]), leaf.dtype, sparse=sparse)

    model._symbolic_build(data_batch=keras.tree.map_structure(symbolic, batch))


def compiled_parts(model: Any) -> tuple[Any, ...]:
    """The parts of a model that `compile` replaces: optimizer, losses and metrics, and what it was given."""
    names = ("optimizer", "_compile_loss", "_compile_metrics", "compiled")
    return tuple(getattr(model, name, None) for name in names)


def with_inner(optimizer: Any) -> list[Any]:
    """An optimizer and the one inside it, if there is one; empty without an optimizer."""
    return [one for one in (optimizer, getattr(optimizer, "inner_optimizer", None)) if one is not None]


def compiled_with(model: Any) -> Any:
    """The optimizer that `compile` was given, or made from a name; None if it was not called."""
    settings = vars(model).get("_compile_config")
    return None if settings is None else settings.config["optimizer"]


def put_optimizer(model: Any, optimizer: Any) -> None:
    """Give a compiled model another optimizer; losses, metrics and weights stay the same objects."""
    from keras.src.utils import tracking

    with tracking.DotNotTrackScope():
        model.optimizer = optimizer
    settings = vars(model).get("_compile_config")  # which a saved model is compiled with when it is loaded
    if settings is not None:
        settings.config["optimizer"] = optimizer


def is_built(model: Any, *, trains: bool, evaluates: bool) -> bool:
    """Whether all layers, and what training or evaluation needs besides, have their variables."""
    optimizer, loss, metrics, _ = compiled_parts(model)
    parts = all_layers(model) + ([optimizer] if trains else []) + ([loss, metrics] if evaluates else [])
    return all(part is None or part.built for part in parts)


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers that a model holds as attributes, and those inside them."""
    held = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    return [one for optimizer in held for one in with_inner(optimizer)]


def optimizer_targets(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built for."""
    return list(optimizer._trainable_variables)


@contextmanager
def captured_updates(capture: Callable[[Any, list[Any], list[Any]], None]) -> Iterator[None]:
    """Hand every `optimizer.apply` of this thread to `capture`, whichever optimizer it is.

    Patched where it is defined, in all classes: the optimizers that a step uses are not known, and one
    that was overlooked would change the weights.
    """
    thread = threading.get_ident()

    def hook(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if threading.get_ident() != thread:
                return original(optimizer, grads, trainable_variables)
            targets = optimizer_targets(optimizer) if trainable_variables is None else trainable_variables
            capture(optimizer, list(grads), list(targets))
            return None

        return apply

    with ExitStack() as patches:
        for kind in _with_subclasses(keras.optimizers.Optimizer):
            owner = next(cls for cls in kind.__mro__ if "apply" in vars(cls))
            if not hasattr(vars(owner)["apply"], "_memfit"):
                hooked = hook(vars(owner)["apply"])
                hooked._memfit = True  # type: ignore[attr-defined]
                patches.enter_context(replaced(owner, "apply", hooked))
        yield


def _with_subclasses(kind: Any) -> list[Any]:
    found = [kind]
    for child in kind.__subclasses__():
        found.extend(_with_subclasses(child))
    return found


def uncompile(model: Any) -> None:
    """Take back `compile`: the optimizer and its slots are no longer the model's."""
    from keras.src.utils import tracking

    with tracking.DotNotTrackScope():
        model.optimizer = None
    vars(model).pop("_compile_config", None)  # which holds the optimizer as well
    model.compiled = False


def strategy_of(model: Any) -> Any:
    """The distribution strategy that the model was created under, or None."""
    return model._distribute_strategy


@contextmanager
def predictions_on_host(concatenate: Callable[[list[Any]], Any]) -> Iterator[None]:
    """Let `predict` join its batches with `concatenate`, which gets None back where it should not."""
    from keras.src.backend.tensorflow import trainer

    join = trainer.potentially_ragged_concat

    def joined(tensors: list[Any]) -> Any:
        ours = concatenate(tensors)
        return join(tensors) if ours is None else ours

    with replaced(trainer, "potentially_ragged_concat", joined):
        yield


def epoch_iterators() -> Any:
    """The class whose objects give `fit` the batches of one epoch after the other."""
    from keras.src.backend.tensorflow import trainer

    return trainer.TFEpochIterator


@contextmanager
def first_iterator_from(make: Callable[..., Any]) -> Iterator[None]:
    """Let the next `fit` take its batches from what `make` returns; its evaluations take theirs as ever.

    `make` is given Keras' own class and what it is made from.
    """
    from keras.src.backend.tensorflow import trainer

    kind = trainer.TFEpochIterator
    makers = [functools.partial(make, kind)]

    def made(**options: Any) -> Any:
        return (makers.pop() if makers else kind)(**options)

    with replaced(trainer, "TFEpochIterator", made):
        yield


@contextmanager
def metrics_where_no_step_ran(model: Any) -> Iterator[None]:
    """Let an epoch whose last batches were trained on before say what its metrics say."""
    results = model._get_metrics_result_or_logs

    def found(logs: Any) -> Any:
        return results(logs) if logs else model.get_metrics_result()

    with overridden(model, "_get_metrics_result_or_logs", found):
        yield


_SEED = "seed_generator_state"


class StepWithoutData:
    """The step that Keras begins at the end of data whose length it does not know.

    Its graph counts the step and draws seeds while it waits for the batch that never comes. So the next epoch
    begins one step further, which Adam and schedules notice. Not eagerly, nor under XLA: they want the batch.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._moves: list[tuple[Any, Any]] | None = None  # seeds, and by how much a step moves them

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A step is done in here, whose draws are those of any other."""
        seeds = [] if self._moves is not None else _seeds(self._model)
        before = [seed.numpy() for seed in seeds]
        yield
        if self._moves is None:
            pairs = zip(seeds, before, strict=True)
            self._moves = [(seed, seed.numpy() - value) for seed, value in pairs]

    def happen(self) -> None:
        """Move what it moves, if there is one."""
        model = self._model
        optimizer = getattr(model, "optimizer", None)
        waits = model.run_eagerly or model.jit_compile or model.steps_per_execution > 1
        if self._moves is None or waits:
            return
        if optimizer is not None and _counts_by_itself(optimizer):
            optimizer.iterations.assign_add(1)
        for seed, move in self._moves:
            seed.assign(seed.numpy() + move)


def _seeds(model: Any) -> list[Any]:
    found = {id(one): one for one in model.variables if one.path.rpartition("/")[2] == _SEED}
    return [backing_variable(one) for one in found.values()]


def _counts_by_itself(optimizer: Any) -> bool:
    """Whether its counter moves whatever the gradients are."""
    waits = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return not waits and not optimizer.gradient_accumulation_steps
