"""The scripts of strangers in `scripts/`, each with a budget that it runs out in unless its batch is smaller.

They are written as people write them, so nothing in them knows of memfit. `large` is where a script says how
large its batch is; with `small` in its place plain Python trains within the budget.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "scripts"
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]*\w)")


def numbers_in(output: str) -> list[float]:
    """The numbers of the last line that a script has printed: its results."""
    return [float(found) for found in _NUMBER.findall((output.strip().splitlines() or [""])[-1])]


@dataclass(frozen=True)
class Stranger:
    """One script: its budget, its batch, and whether micro-batches compute the same."""

    budget: str
    large: str
    small: str
    arguments: tuple[str, ...] = ()
    not_same: str | None = None  # why its numbers may be others than those of the unlimited run
    kept_whole: str | None = None  # what is said where its batches are not split
    budget_without_onednn: str | None = None  # where kernels need very different memory

    def budget_in(self, onednn: str) -> str:
        """The budget with TF_ENABLE_ONEDNN_OPTS at 0 or 1."""
        return self.budget_without_onednn if self.budget_without_onednn and onednn == "0" else self.budget


STRANGERS = {
    "mnist_like_cnn": Stranger("110MiB", "BATCH_SIZE = 256", "BATCH_SIZE = 32", not_same="no seed"),
    "pets_from_directory": Stranger(
        "110MiB",
        '"--batch-size", type=int, default=64',
        '"--batch-size", type=int, default=8',
        not_same="BatchNorm",
    ),
    "resnet_finetune": Stranger("115MiB", "'BATCH', 192", "'BATCH', 16", not_same="BatchNorm"),
    "sentiment_textvec": Stranger("60MiB", "BATCH_SIZE = 128", "BATCH_SIZE = 16"),
    "dcgan_class": Stranger(
        "170MiB",
        "BATCH_SIZE = 384",
        "BATCH_SIZE = 16",
        kept_whole="the step makes 2 updates",
        budget_without_onednn="224MiB",
    ),
    "siamese_contrastive": Stranger("105MiB", "batch_size=192", "batch_size=16"),
    "vae_train_step": Stranger("120MiB", '"batch_size": 512', '"batch_size": 32'),
    "unet_seg": Stranger("110MiB", '"BATCH_SIZE", "48"', '"BATCH_SIZE", "4"'),
    "multi_io_dict": Stranger("110MiB", "batch_size = 256", "batch_size = 32"),
    "timeseries_generator": Stranger("96MiB", "\nbatch_size = 128", "\nbatch_size = 16"),
    "autoencoder_train_on_batch": Stranger("110MiB", "bs = 256", "bs = 16"),
    "transformer_text": Stranger("80MiB", "batch_size=128", "batch_size=16", not_same="Dropout and no seed"),
    "triplet_embedding": Stranger("140MiB", "BATCH = 64", "BATCH = 8"),
    "churn_pandas": Stranger("60MiB", "epochs=3, batch_size=4096", "epochs=3, batch_size=512"),
    "kfold_gridsearch": Stranger("90MiB", "BATCH = 288", "BATCH = 16"),
    "char_rnn": Stranger("28MiB", "batch_size=256", "batch_size=32"),
    "subclassed_attention": Stranger("20MiB", "default=128", "default=16"),
    "mixed_precision_train": Stranger("120MiB", "batch_size=256", "batch_size=32"),
    "stateful_rnn": Stranger("64MiB", "batch_size = 256", "batch_size = 32"),
    "big_pipeline": Stranger("130MiB", "BATCH_SIZE = 128", "BATCH_SIZE = 16"),
    "workers_mp": Stranger("110MiB", "BATCH_SIZE = 512", "BATCH_SIZE = 64"),
    "eager_debug": Stranger("90MiB", "batch_size=128, epochs", "batch_size=16, epochs"),
    "datagen_old_school": Stranger("110MiB", "batch_size = 96", "batch_size = 12"),
    "vae_add_loss": Stranger("64MiB", "B = 2048", "B = 128"),
    "trainer_oop": Stranger("110MiB", "batch_size: int = 32", "batch_size: int = 4"),
    "seq2seq_dates": Stranger("23MiB", "batch_size = 256", "batch_size = 32"),
    "ct_volumes_sequence": Stranger("110MiB", "'BSIZE', 32", "'BSIZE', 4"),
    "word2vec_skipgram": Stranger("60MiB", "BATCH_SIZE = 8192", "BATCH_SIZE = 1024"),
}
