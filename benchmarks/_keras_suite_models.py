"""Small models of keras-hub and keras.applications with random weights, and what memfit makes of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

VOCABULARY, TOKENS, PIXELS, CLASSES = 512, 32, 32, 5
SAMPLES, PART, STEPS = 8, 3, 3

Batch = Callable[[int], tuple[Any, Any]]
Built = tuple[Any, Any, Batch]  # a model, its loss, and batches of a size


def _draw() -> Any:
    import numpy as np

    return np.random.default_rng(0)


def _tokens(*names: str) -> Callable[[int], dict[str, Any]]:
    """Inputs by their names: token numbers, or masks and segments, which are ones and zeros."""
    import numpy as np

    def batch(count: int) -> dict[str, Any]:
        shape, found = (count, TOKENS), {}
        for name in names:
            if "mask" in name:
                lengths = _draw().integers(TOKENS // 2, TOKENS + 1, (count, 1))
                found[name] = (np.arange(TOKENS) < lengths).astype("int32")
            else:
                found[name] = (
                    _draw().integers(1, 2 if "segment" in name else VOCABULARY, shape).astype("int32")
                )
        return found

    return batch


def _images(count: int, pixels: int = PIXELS) -> Any:
    return _draw().random((count, pixels, pixels, 3)).astype("float32")


def _classes(count: int, *more: int) -> Any:
    return _draw().integers(0, CLASSES, (count, *more)).astype("int32")


def _cross_entropy() -> Any:
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _transformer(**more: Any) -> dict[str, Any]:
    return {
        "vocabulary_size": VOCABULARY,
        "num_layers": 2,
        "hidden_dim": 32,
        "intermediate_dim": 64,
        "dropout": 0.0,
        **more,
    }


def _bert() -> Built:
    from keras_hub import models

    backbone = models.BertBackbone(**_transformer(num_heads=2, max_sequence_length=TOKENS))
    model = models.BertTextClassifier(backbone=backbone, num_classes=CLASSES, preprocessor=None, dropout=0.0)
    x = _tokens("token_ids", "segment_ids", "padding_mask")
    return model, _cross_entropy(), lambda n: (x(n), _classes(n))


def _causal(model: Any) -> Built:
    x = _tokens("token_ids", "padding_mask")
    return model, _cross_entropy(), lambda n: (x(n), x(n)["token_ids"])


def _gpt2() -> Built:
    from keras_hub import models

    backbone = models.GPT2Backbone(**_transformer(num_heads=2, max_sequence_length=TOKENS))
    return _causal(models.GPT2CausalLM(backbone=backbone, preprocessor=None))


def _gemma() -> Built:
    from keras_hub import models

    heads = {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    backbone = models.GemmaBackbone(**_transformer(**heads))
    backbone.enable_lora(4)
    return _causal(models.GemmaCausalLM(backbone=backbone, preprocessor=None))


def _llama() -> Built:
    from keras_hub import models

    backbone = models.Llama3Backbone(**_transformer(num_query_heads=2, num_key_value_heads=1))
    return _causal(models.Llama3CausalLM(backbone=backbone, preprocessor=None))


def _on_top(backbone: Any, output: str) -> Any:
    import keras

    return keras.Model(backbone.input, keras.layers.Dense(VOCABULARY)(backbone.output[output]))


def _t5() -> Built:
    from keras_hub import models

    backbone = models.T5Backbone(**_transformer(num_heads=2))
    x = _tokens("encoder_token_ids", "encoder_padding_mask", "decoder_token_ids", "decoder_padding_mask")
    model = _on_top(backbone, "decoder_sequence_output")
    return model, _cross_entropy(), lambda n: (x(n), x(n)["decoder_token_ids"])


def _whisper() -> Built:
    from keras_hub import models

    lengths = {"max_encoder_sequence_length": 2 * TOKENS, "max_decoder_sequence_length": TOKENS}
    backbone = models.WhisperBackbone(**_transformer(num_heads=2, num_mels=8, **lengths))
    tokens = _tokens("decoder_token_ids", "decoder_padding_mask")

    def batch(count: int) -> tuple[Any, Any]:
        sounds = _draw().random((count, 2 * TOKENS, 8)).astype("float32")
        x = {"encoder_features": sounds, **tokens(count)}
        return x, x["decoder_token_ids"]

    return _on_top(backbone, "decoder_sequence_output"), _cross_entropy(), batch


def _vit() -> Built:
    from keras_hub import models

    backbone = models.ViTBackbone(
        image_shape=(PIXELS, PIXELS, 3), patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64
    )
    model = models.ViTImageClassifier(backbone=backbone, num_classes=CLASSES, preprocessor=None)
    return model, _cross_entropy(), lambda n: (_images(n), _classes(n))


def _resnet() -> Built:
    from keras_hub import models

    backbone = models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(PIXELS, PIXELS, 3),
    )
    model = models.ResNetImageClassifier(backbone=backbone, num_classes=CLASSES, preprocessor=None)
    return model, _cross_entropy(), lambda n: (_images(n), _classes(n))


def _segformer() -> Built:
    from keras_hub import models

    encoder = models.MiTBackbone(
        image_shape=(2 * PIXELS, 2 * PIXELS, 3),
        num_layers=4,
        hidden_dims=[8, 16, 24, 32],
        layerwise_depths=[1, 1, 1, 1],
        layerwise_num_heads=[1, 1, 1, 2],
        layerwise_sr_ratios=[8, 4, 2, 1],
        layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2],
        max_drop_path_rate=0.0,
    )
    backbone = models.SegFormerBackbone(image_encoder=encoder, projection_filters=16)
    model = models.SegFormerImageSegmenter(backbone=backbone, num_classes=CLASSES, preprocessor=None)
    return model, _cross_entropy(), lambda n: (_images(n, 2 * PIXELS), _classes(n, 2 * PIXELS, 2 * PIXELS))


def _vae() -> Built:
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    model = VAEBackbone([32, 32], [1, 1], [32, 32], [1, 1], sampler_method="mode", sample_channels=4)
    return model, "mse", lambda n: (_images(n), _images(n))


def _application(name: str) -> Callable[[], Built]:
    def build() -> Built:
        import keras

        shape = (PIXELS, PIXELS, 3)
        model = getattr(keras.applications, name)(weights=None, input_shape=shape, classes=CLASSES)
        return model, "sparse_categorical_crossentropy", lambda n: (_images(n), _classes(n))

    return build


MODELS: dict[str, Callable[[], Built]] = {
    "BERT": _bert,
    "GPT-2": _gpt2,
    "Gemma with LoRA": _gemma,
    "Llama 3": _llama,
    "T5": _t5,
    "Whisper": _whisper,
    "ViT": _vit,
    "ResNet": _resnet,
    "SegFormer": _segformer,
    "VAE": _vae,
    "VGG16": _application("VGG16"),
    "MobileNetV3Small": _application("MobileNetV3Small"),
    "ConvNeXtTiny": _application("ConvNeXtTiny"),
}
MANY = {"VGG16": 32, "MobileNetV3Small": 64, "ConvNeXtTiny": 16}  # samples, to estimate; else 64


def _compiled(name: str) -> tuple[Any, Batch]:
    import keras

    keras.utils.clear_session(free_memory=False)  # equal names: TensorFlow orders some sums by name
    keras.utils.set_random_seed(1)
    model, loss, batch = MODELS[name]()
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, jit_compile=False)
    return model, batch


def moved_apart(name: str, dtype: str) -> dict[str, Any]:
    """How far weights are from those of plain Keras after some steps, of the furthest that a weight moved."""
    import keras
    import numpy as np

    import memfit

    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    trained: dict[str, list[Any]] = {}
    notes: dict[str, Any] = {}
    for way in ("plain", "whole", "split"):
        model, batch = _compiled(name)
        begun = [np.array(variable) for variable in model.trainable_variables]
        x, y = batch(SAMPLES)
        given = {"batch_size": SAMPLES, "epochs": STEPS, "shuffle": False, "verbose": 0}
        if way == "plain":
            model.fit(x, y, **given)
        else:
            size = PART if way == "split" else None
            history = memfit.fit(model, x, y, plan=False, micro_batch_size=size, **given)
            notes[f"notes_{way}"] = list(history.run.notes)
        trained[way] = [np.array(variable) for variable in model.trainable_variables]
    furthest = max(_distance(trained["plain"], begun), 1e-300)
    return {way: _distance(trained["plain"], trained[way]) / furthest for way in ("whole", "split")} | notes


def _distance(some: list[Any], others: list[Any]) -> float:
    import numpy as np

    return max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in zip(some, others, strict=True))


def peaks(name: str) -> dict[str, Any]:
    """The estimate and the measured peak of a step, plainly and with activations computed again."""
    import memfit

    found: dict[str, Any] = {}
    count = MANY.get(name, 64)
    model, batch = _compiled(name)
    for way in ("plain", "remat"):
        if way == "remat":
            try:
                memfit.remat(model, data=batch(count)[0])
            except memfit.errors.MemfitError as error:
                return {**found, "remat": str(error).splitlines()[0]}
        estimate = memfit.estimate(model, count, data=batch(2))
        measured = []
        for _ in range(4):
            with memfit.devices.measure_peak() as step:
                model.train_on_batch(*batch(count))
            measured.append(step.peak_bytes)
        low, high = min(measured[1:]), max(measured[1:])
        found[way] = {
            "estimate_bytes": estimate.peak_bytes,
            "safe_bytes": estimate.safe_bytes,
            "measured_bytes": [low, high],
            "error": round(estimate.peak_bytes / sorted(measured[1:])[1] - 1, 3),
        }
    return found


def main() -> None:
    """Print what becomes of one model: `float64 BERT`, or `peaks BERT`."""
    what, name = sys.argv[1:]
    if what == "peaks":
        import memfit

        memfit.limit("6GiB")
        print(json.dumps(peaks(name)))
    else:
        print(json.dumps(moved_apart(name, what)))


if __name__ == "__main__":
    main()
