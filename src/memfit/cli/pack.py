"""`memfit pack`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from memfit.cli.options import json_option, quiet_option, show


@click.command(epilog="Example: memfit pack photos packed --labels folders --shuffle")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("dest", type=click.Path(path_type=Path), required=False)
@click.option("--labels", metavar="folders|FILE.csv", help="Where the labels of images come from.")
@click.option(
    "--format",
    type=click.Choice(("tfrecord", "hdf5")),
    default="tfrecord",
    show_default=True,
    help="What DEST shall hold.",
)
@click.option("--size", metavar="HxW", help="Make images of this size and encode them again; HDF5 needs it.")
@click.option(
    "--x", metavar="NAME", help="The array of an HDF5 or npz file to pack; else x, or the only one."
)
@click.option("--y", metavar="NAME", help="The array of its labels; else y. For npy, another npy file.")
@click.option("--shard-size", metavar="SIZE", help="About how large a file gets.  [default: 128MiB]")
@click.option("--shards", type=click.IntRange(min=1), metavar="N", help="How many files, instead.")
@click.option("--shuffle", is_flag=True, help="Mix elements once, for readers that go straight through.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", default=0, help="Mix them in another way.")
@click.option(
    "--on-error",
    type=click.Choice(("raise", "skip")),
    default="raise",
    show_default=True,
    help="Stop at what cannot be read, or leave it out and list it.",
)
@click.option("--check/--no-check", default=True, help="Decode each image to see whether it can be.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Threads; else one for each core.")
@click.option("--force", is_flag=True, help="Remove another pack that is in DEST.")
@click.option("--verify", is_flag=True, help="Read a pack and compare it with its checksums: --verify DEST.")
@json_option
@quiet_option
def pack(
    source: Path,
    dest: Path | None,
    size: str | None,
    workers: int | None,
    verify: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Pack a data set into a few large files that are quick to read.

    SOURCE is a folder of images, or an HDF5, npz or npy file of any size. DEST is a folder for TFRecords or
    one HDF5 file, with a checksum for each element and a manifest.

    It can be interrupted at any time: the same command goes on with what is missing. Images are packed as
    they are, byte for byte, unless --size is given. With --verify, nothing is packed, and the exit code is 1
    if anything is damaged.
    """
    if verify == (dest is not None):
        raise click.UsageError("Give SOURCE and DEST, or --verify and DEST alone.")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # nothing of this is faster on a GPU
    how: dict[str, Any] = {"quiet": quiet or as_json, "workers": workers}
    if dest is None:
        _verify(source, as_json=as_json, **how)
    else:
        _pack(source, dest, as_json=as_json, size=_size_of(size), **how, **options)


def _pack(source: Path, dest: Path, *, as_json: bool, quiet: bool, **options: Any) -> None:
    from rich.text import Text

    from memfit.cli.progress import packing_progress
    from memfit.data.manifest import Pack, summary_of_pack
    from memfit.data.packs.packing import pack

    def make() -> Pack:
        with packing_progress(quiet=quiet) as on_progress:
            return pack(source, dest, on_progress=on_progress, **options)

    show(make, lambda made: Text(summary_of_pack(made)), as_json=as_json, output=None)


def _verify(dest: Path, *, as_json: bool, quiet: bool, workers: int | None) -> None:
    from rich.text import Text

    from memfit.cli.progress import packing_progress
    from memfit.data.manifest import Verification, summary_of_verification
    from memfit.data.packs.verifying import verify_pack

    def make() -> Verification:
        with packing_progress(quiet=quiet) as on_progress:
            return verify_pack(dest, workers=workers, on_progress=on_progress)

    found = show(make, lambda found: Text(summary_of_verification(found)), as_json=as_json, output=None)
    if found.damages:
        raise click.exceptions.Exit(1)


def _size_of(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    if not all(side.isascii() and side.isdigit() and int(side) for side in (height, width)):
        raise click.BadParameter(f"{text!r} is not HEIGHTxWIDTH in pixels, as 160x160.", param_hint="--size")
    return int(height), int(width)
