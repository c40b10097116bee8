"""Packs of real files: what TensorFlow reads from them, what kills leave of them, what damage is found."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from limited import run_limited
from memfit.core.errors import ChildFailed

pytestmark = pytest.mark.real

CLASSES = ("cat", "dog", "newt")


def _draw(path: Path, size: tuple[int, int], mode: str = "RGB", **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(zlib.crc32(path.name.encode())).integers(0, 256, (*size, 4), np.uint8)
    Image.fromarray(noise, "RGBA").convert(mode).save(path, **options)


def _photos(folder: Path, count: int = 12) -> Path:
    for number in range(count):
        _draw(folder / CLASSES[number % 3] / f"{number:03d}.jpg", (20 + number % 5, 24))
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _tried(call: Any) -> str:
    from memfit.core.errors import MemfitError

    try:
        return f"no error: {call()}"
    except MemfitError as error:
        return f"{type(error).__name__}: {error}"


def _read_images(photos: str, table: str, dest: str) -> dict[str, Any]:
    """Pack images in several ways, and look at them with TensorFlow alone."""
    import tensorflow as tf

    import memfit

    pack = memfit.data.pack
    spec = {"image": "string", "label": "int64", "path": "string"}
    features = {name: tf.io.FixedLenFeature((), kind) for name, kind in spec.items()}

    def read(folder: str) -> list[Any]:
        files = sorted(map(str, Path(folder).glob("*.tfrecord")))
        return [tf.io.parse_single_example(one, features) for one in tf.data.TFRecordDataset(files)]

    def paths(folder: str) -> list[str]:
        return [one["path"].numpy().decode() for one in read(folder)]

    plain = pack(photos, f"{dest}/plain", labels="folders", shards=4)
    pack(photos, f"{dest}/unchecked", labels="folders", shards=4, check=False, workers=1)
    pack(photos, f"{dest}/mixed", labels="folders", shuffle=True, seed=5)
    tabled = pack(photos, f"{dest}/tabled", labels=table, size=(8, 10))
    elements = read(f"{dest}/plain")
    indices = [np.load(path) for path in sorted(Path(dest, "plain").glob("*.index.npy"))]
    small = [tf.io.decode_image(one["image"]).shape.as_list() for one in read(f"{dest}/tabled")]
    return {
        "manifest": plain.to_dict(),
        "same bytes": all(
            one["image"].numpy() == Path(photos, one["path"].numpy().decode()).read_bytes()
            for one in elements
        ),
        "right label": all(
            plain.class_names[int(one["label"])] == one["path"].numpy().decode().split("/")[0]
            for one in elements
        ),
        "paths": paths(f"{dest}/plain"),
        "mixed": paths(f"{dest}/mixed"),
        "unchecked": _files(Path(dest, "plain")).keys() == _files(Path(dest, "unchecked")).keys()
        and paths(f"{dest}/unchecked") == paths(f"{dest}/plain"),
        "first offsets": [index[:2, 0].tolist() for index in indices],
        "lengths": [int(index[0, 1]) + 16 for index in indices],
        "small": small,
        "suffixes": [one["image"].numpy()[:4].hex() for one in read(f"{dest}/tabled")],
        "table": [int(one["label"]) for one in read(f"{dest}/tabled")],
        "table's classes": tabled.class_names,
        "verified": [
            memfit.data.verify_pack(f"{dest}/{name}").damages for name in ("plain", "mixed", "tabled")
        ],
    }


def test_images_are_packed_as_they_are_or_smaller(tmp_path: Path) -> None:
    photos = _photos(tmp_path / "photos")
    _draw(photos / "newt" / "grey.png", (16, 16), "L")
    _draw(photos / "newt" / "glass.png", (16, 16), "RGBA")
    _draw(photos / "newt" / "grey.jpg", (16, 16), "L")
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.*"))
    table = tmp_path / "labels.csv"
    table.write_text("file,label\n" + "".join(f"{name},{number * 10}\n" for number, name in enumerate(names)))
    seen = run_limited(_read_images, None, photos=str(photos), table=str(table), dest=str(tmp_path / "packs"))
    manifest = seen["manifest"]
    assert manifest["elements"] == sum(shard["elements"] for shard in manifest["shards"]) == 15
    assert [shard["name"] for shard in manifest["shards"]] == [f"shard-0000{n}.tfrecord" for n in range(4)]
    assert (manifest["class_names"], manifest["skipped"]) == ([*CLASSES], [])
    assert seen["same bytes"]
    assert seen["right label"]
    assert seen["paths"] == names
    assert seen["mixed"] != names
    assert sorted(seen["mixed"]) == names
    assert seen["unchecked"]
    assert seen["first offsets"] == [[0, length] for length in seen["lengths"]]
    channels = {"newt/grey.png": 1, "newt/glass.png": 4, "newt/grey.jpg": 1}
    assert seen["small"] == [[8, 10, channels.get(name, 3)] for name in names]
    assert seen["suffixes"] == ["89504e47" if name.endswith("png") else "ffd8ffe0" for name in names]
    assert seen["table"] == [number * 10 for number in range(15)]
    assert seen["table's classes"] is None
    assert seen["verified"] == [[], [], []]


def _read_arrays(folder: str) -> dict[str, Any]:
    """Pack arrays of all kinds of files to both formats, and compare every value."""
    import h5py
    import tensorflow as tf

    import memfit

    home = Path(folder)
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 7, 3)).astype(">f4")
    y = random.integers(-5, 5, (50, 2)).astype(np.int16)
    exact = random.normal(size=50)
    words = np.array([f"é{number}" for number in range(50)])
    np.savez(home / "stored.npz", x=x, y=y)
    np.savez_compressed(home / "small.npz", pictures=x, targets=exact)
    np.save(home / "x.npy", np.asfortranarray(x))
    np.save(home / "words.npy", words)
    with h5py.File(home / "data.h5", "w") as file:
        file.create_dataset("group/x", data=x, chunks=(8, 7, 3), compression="gzip")
        file["group/y"] = y
        file["words"] = words.astype(object)
    cases: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "stored": ("stored.npz", y, {}),
        "compressed": ("small.npz", exact, {"x": "pictures", "y": "targets"}),
        "npy": ("x.npy", words, {"y": str(home / "words.npy")}),
        "hdf5": ("data.h5", y, {"x": "group/x", "y": "group/y", "shuffle": True}),
        "hdf5 with words": ("data.h5", words, {"x": "group/x", "y": "words"}),
    }
    seen: dict[str, Any] = {}
    for name, (file_name, labels, options) in cases.items():
        records = memfit.data.pack(home / file_name, home / f"{name}.pack", shards=3, **options)
        joined = memfit.data.pack(home / file_name, home / f"{name}.joined", format="hdf5", **options)
        found = [
            _parsed(one, records.features)
            for shard in records.shards
            for one in tf.data.TFRecordDataset(str(home / f"{name}.pack" / shard.name))
        ]
        order = _places(x, [one["x"] for one in found])
        with h5py.File(home / f"{name}.joined" / "data.h5") as file:
            rows = [
                (a, b.decode() if isinstance(b, bytes) else b)
                for a, b in zip(file["x"], file["y"], strict=True)
            ]
        seen[name] = {
            "x": sorted(order) == list(range(50)),
            "order": order == list(range(50)),
            "y": _are_same([one["y"] for one in found], labels[order]),
            "joined": _places(x, [row for row, _ in rows]) == order
            and _are_same([row for _, row in rows], labels[order]),
            "kinds": [records.features["x"].kind, records.features["y"].kind, records.features["y"].dtype],
            "files": sorted(_files(home / f"{name}.joined")),
            "damages": [*memfit.data.verify_pack(home / f"{name}.pack").damages,
                        *memfit.data.verify_pack(home / f"{name}.joined").damages],
        }  # fmt: skip
        assert joined.elements == 50
    return seen


def _parsed(record: Any, features: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    example = tf.train.Example.FromString(record.numpy()).features.feature
    found: dict[str, Any] = {}
    for name, feature in features.items():
        part = example[name]
        if feature.kind == "text":
            found[name] = part.bytes_list.value[0].decode()
        elif feature.kind == "array":
            raw = tf.io.decode_raw(part.bytes_list.value[0], feature.dtype)
            found[name] = tf.reshape(raw, feature.shape).numpy()
        else:
            found[name] = np.reshape(part.int64_list.value or part.float_list.value, feature.shape)
    return found


def _are_same(found: list[Any], expected: Any) -> bool:
    return all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def _places(x: Any, rows: list[Any]) -> list[int]:
    """Which rows of x these are."""
    known = {row.astype("<f4").tobytes(): place for place, row in enumerate(x)}
    return [known[np.asarray(row, "<f4").tobytes()] for row in rows]


def test_arrays_come_out_exactly_as_they_went_in(tmp_path: Path) -> None:
    seen = run_limited(_read_arrays, None, folder=str(tmp_path))
    kinds = {
        "stored": ["array", "number", "int16"],
        "compressed": ["array", "array", "float64"],  # TensorFlow's lists of numbers would round them
        "npy": ["array", "text", None],
        "hdf5": ["array", "number", "int16"],
        "hdf5 with words": ["array", "text", None],
    }
    assert set(seen) == set(kinds)
    for name, found in seen.items():
        assert found == {
            "x": True,
            "order": name != "hdf5",  # which is shuffled
            "y": True,
            "joined": True,
            "kinds": kinds[name],
            "files": ["data.h5", "data.index.npy", "manifest.json"],
            "damages": [],
        }, name


def _pack_until_killed(photos: str, dest: str, after: int, **options: Any) -> None:
    import signal

    import memfit

    def on_progress(what: str, done: int, total: int) -> None:
        if done == after:
            os.kill(os.getpid(), signal.SIGKILL)

    memfit.data.pack(photos, dest, labels="folders", on_progress=on_progress, **options)


def _go_on(photos: str, dest: str) -> dict[str, Any]:
    """Go on with packs that were killed, and make the same ones undisturbed."""
    import memfit

    seen: dict[str, Any] = {}
    for name, options in PACKS.items():
        first: list[int] = []
        begun = Path(dest, name)
        tampered = begun / "shard-00000.index.npy"
        before = sorted(_files(begun))
        if name == "tfrecord":
            tampered.write_bytes(tampered.read_bytes()[:-1])  # so that this shard is not whole any more

        def on_progress(what: str, done: int, total: int, first: list[int] = first) -> None:
            first.append(done)

        memfit.data.pack(photos, begun, labels="folders", on_progress=on_progress, **options)
        memfit.data.pack(photos, f"{dest}/{name} undisturbed", labels="folders", workers=1, **options)
        is_same = _files(begun) == _files(Path(dest, f"{name} undisturbed"))
        seen[name] = {"before": before, "first": first[0], "same": is_same, "after": sorted(_files(begun))}
    return seen


PACKS: dict[str, dict[str, Any]] = {
    "tfrecord": {"shards": 6, "shuffle": True},
    "hdf5": {"shards": 6, "format": "hdf5", "size": (8, 8)},
}


def test_a_pack_that_was_killed_goes_on_and_has_the_same_bytes(tmp_path: Path) -> None:
    photos = _photos(tmp_path / "photos", 36)
    for name, options in PACKS.items():
        with pytest.raises(ChildFailed):
            run_limited(
                _pack_until_killed, None, photos=str(photos), dest=str(tmp_path / name), after=20, **options
            )
    seen = run_limited(_go_on, None, photos=str(photos), dest=str(tmp_path))
    suffix = {"tfrecord": "tfrecord", "hdf5": "rows"}
    for name, found in seen.items():
        assert f"shard-00003.{suffix[name]}.tmp" in found["before"]
        assert "shard-00002.done.json" in found["before"]
        assert "manifest.json" not in found["before"]
        assert found["first"] == {"tfrecord": 12, "hdf5": 18}[name]  # three shards, less one that was damaged
        assert found["same"]
        assert not [file for file in found["after"] if file.endswith((".tmp", ".done.json", ".rows"))]


def _interrupt_at(moment: int, is_ours: Any, *, opcodes: bool) -> Any:
    """A trace function that raises KeyboardInterrupt at one moment of our own code."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "call" and not is_ours(frame.f_code):
            return None
        frame.f_trace_opcodes = opcodes
        count += 1
        if count == moment:
            raise KeyboardInterrupt
        return trace

    return trace


def _interrupt_everywhere(source: str, home: str, inside: list[str], opcodes: bool, **options: Any) -> Any:
    """Interrupt a pack at every moment inside of some functions; the files that are left over."""
    import sys

    import memfit
    from memfit.data.packs import pack_folder

    folder = Path(pack_folder.__file__).parent
    files = {str(path) for path in folder.glob("*.py")}

    def is_ours(code: Any) -> bool:
        return code.co_filename in files and (not inside or code.co_qualname.split(".")[0] in inside)

    whole = Path(home, "whole")
    memfit.data.pack(source, whole, workers=1, **options)
    left: dict[str, list[str]] = {}
    moment, is_interrupted, others = 0, True, []
    while is_interrupted:
        moment += 1
        dest = Path(home, str(moment))
        is_interrupted = False
        sys.settrace(_interrupt_at(moment, is_ours, opcodes=opcodes))
        try:
            memfit.data.pack(source, dest, workers=1, **options)
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            sys.settrace(None)
        found = sorted(_files(dest)) if dest.exists() else []
        if temporary := [name for name in found if name.endswith(".tmp")]:
            left[str(moment)] = temporary
        if moment % 10 == 0:
            memfit.data.pack(source, dest, workers=1, **options)
            others += [moment] if _files(dest) != _files(whole) else []
        shutil.rmtree(dest, ignore_errors=True)
    return {"moments": moment, "left": left, "others": others}


@pytest.mark.parametrize("format", ["tfrecord", "hdf5"])
def test_ctrl_c_at_any_line_leaves_no_temporary_file(format: str, tmp_path: Path) -> None:  # noqa: A002
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32))
    arguments: dict[str, Any] = {"source": str(tmp_path / "x.npy"), "home": str(tmp_path), "inside": []}
    seen = run_limited(_interrupt_everywhere, None, opcodes=False, format=format, shards=2, **arguments)
    assert seen["moments"] > 300
    assert (seen["left"], seen["others"]) == ({}, [])


def test_ctrl_c_at_any_instruction_of_a_writer_leaves_no_temporary_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(2, dtype=np.float32))
    inside = ["ShardWriter", "write_whole", "put_in_place", "_open", "_Packing"]
    arguments: dict[str, Any] = {"source": str(tmp_path / "x.npy"), "home": str(tmp_path), "inside": inside}
    seen = run_limited(_interrupt_everywhere, None, opcodes=True, shards=1, **arguments)
    assert seen["moments"] > 500
    assert (seen["left"], seen["others"]) == ({}, [])


def _pack_damaged(photos: str, dest: str, bad: list[str]) -> dict[str, Any]:
    import memfit

    pack = memfit.data.pack
    stopped = _tried(lambda: pack(photos, dest, shards=6))
    left = sorted(_files(Path(dest)))
    first: list[int] = []
    skipped = pack(
        photos, dest, shards=6, on_error="skip", on_progress=lambda what, done, total: first.append(done)
    )
    again = pack(photos, f"{dest} skipped", shards=6, on_error="skip")
    for name in bad[1:]:
        Path(name).unlink()
    Path(photos, "nothing").mkdir()
    (Path(photos, "nothing", "a.jpg")).write_bytes(b"nothing")
    return {
        "stopped": stopped,
        "left": left,
        "first": first[0],
        "skipped": [lost.where for lost in skipped.skipped],
        "reasons": [bool(lost.reason) for lost in skipped.skipped],
        "elements": [skipped.elements, again.elements],
        "same": skipped.shards == again.shards,
        "unchecked": pack(photos, f"{dest} unchecked", check=False).elements,
        "damages": memfit.data.verify_pack(dest).damages,
        "changed": _tried(lambda: pack(photos, dest, shards=6, on_error="skip")),
        "nothing": _tried(lambda: pack(f"{photos}/nothing", f"{dest} nothing", on_error="skip")),
    }


def test_damaged_images_stop_a_pack_or_are_left_out_and_listed(tmp_path: Path) -> None:
    photos = _photos(tmp_path / "photos", 36)
    bad = [photos / "dog" / "016.jpg", photos / "dog" / "empty.png", photos / "newt" / "gone.jpg"]
    bad[0].write_bytes(bad[0].read_bytes()[:-200])
    bad[1].touch()
    bad[2].symlink_to("nowhere")
    dest = tmp_path / "pack"
    seen = run_limited(
        _pack_damaged, None, photos=str(photos), dest=str(dest), bad=[str(path) for path in bad]
    )
    assert seen["stopped"].startswith(f"DamagedData: {bad[0]} cannot be read: ")
    assert "--on-error skip" in seen["stopped"]
    assert "shard-00001.done.json" in seen["left"]
    assert not [name for name in seen["left"] if name.endswith(".tmp")]
    assert seen["first"] > 0  # finished shards were kept
    assert seen["skipped"] == [str(path) for path in bad]
    assert seen["reasons"] == [True, True, True]
    assert seen["elements"] == [35, 35]
    assert seen["same"]
    assert seen["unchecked"] == 37  # the truncated one too, and one that is no image at all
    assert seen["damages"] == []
    assert "Received: a pack of other source files, or of older ones" in seen["changed"]
    assert seen["nothing"].startswith("NoData: ")


def _refused(photos: str, home: str) -> dict[str, str]:
    import memfit

    pack, folder = memfit.data.pack, Path(home)
    np.savez(folder / "several.npz", a=np.zeros(3), b=np.zeros(4))
    np.savez(folder / "damaged.npz", x=np.arange(1000))
    content = bytearray((folder / "damaged.npz").read_bytes())
    content[4000] ^= 1
    (folder / "damaged.npz").write_bytes(content)
    np.save(folder / "complex.npy", np.zeros(3, complex))
    (folder / "data.h5").write_bytes(b"no HDF5")
    (folder / "empty").mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "manifest.json").write_text('{"name": "an app"}')
    (folder / "strange").mkdir()
    (folder / "strange" / "shard-00000.tfrecord").touch()
    pack(photos, folder / "there", labels="folders")
    held = os.open(folder / "empty", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    calls: dict[str, Any] = {
        "missing": lambda: pack(folder / "nowhere", folder / "d"),
        "empty": lambda: pack(folder / "empty", folder / "d"),
        "csv": lambda: pack(__file__, folder / "d"),
        "no size": lambda: pack(photos, folder / "d", format="hdf5"),
        "x of images": lambda: pack(photos, folder / "d", x="x"),
        "labels of arrays": lambda: pack(folder / "several.npz", folder / "d", labels="folders"),
        "several": lambda: pack(folder / "several.npz", folder / "d"),
        "no such array": lambda: pack(folder / "several.npz", folder / "d", x="a", y="c"),
        "lengths": lambda: pack(folder / "several.npz", folder / "d", x="a", y="b"),
        "checksum": lambda: pack(folder / "damaged.npz", folder / "d"),
        "complex": lambda: pack(folder / "complex.npy", folder / "d"),
        "no hdf5": lambda: pack(folder / "data.h5", folder / "d"),
        "other manifest": lambda: pack(photos, folder / "other", force=True),
        "strange shards": lambda: pack(photos, folder / "strange"),
        "other arguments": lambda: pack(photos, folder / "there"),
        "in use": lambda: pack(photos, folder / "empty"),
        "not finished": lambda: memfit.data.verify_pack(folder / "empty"),
    }
    seen = {name: _tried(call) for name, call in calls.items()}
    seen["nothing made"] = str((folder / "d").exists())
    (folder / "there" / "shard-00000.tfrecord").unlink()
    seen["shard gone"] = _tried(lambda: pack(photos, folder / "there", labels="folders"))
    (folder / "there" / "mine.txt").touch()
    pack(photos, folder / "there", force=True)
    seen["forced"] = " ".join(sorted(_files(folder / "there")))
    os.close(held)
    return seen


def test_what_cannot_be_packed_is_said_and_nothing_is_overwritten(tmp_path: Path) -> None:
    photos = _photos(tmp_path / "photos", 3)
    (tmp_path / "home").mkdir()
    seen = run_limited(_refused, None, photos=str(photos), home=str(tmp_path / "home"))
    expected = {
        "missing": "NoData: ",
        "empty": "NoData: ",
        "csv": "is nothing that can be packed",
        "no size": "--size 160x160",
        "x of images": "Received: x='x'",
        "labels of arrays": "Received: labels='folders'",
        "several": "x to be one of a, b",
        "no such array": "has no array 'c'",
        "lengths": "3 in x, 4 in y",
        "checksum": "Bad CRC-32",
        "complex": "complex128",
        "no hdf5": "DamagedData: ",
        "other manifest": "manifest.json of something else",
        "strange shards": "Received: files of an unknown pack",
        "other arguments": "Received: a pack with other arguments",
        "in use": "another memfit pack is writing there",
        "not finished": "NoData: ",
        "nothing made": "False",
        "shard gone": "--force",
        "forced": "manifest.json mine.txt shard-00000.index.npy shard-00000.tfrecord",
    }
    assert {name: text for name, text in seen.items() if expected[name] not in text} == {}
    assert "--force" in seen["other arguments"]


def _fill(photos: str, dest: str, limit_bytes: int | None) -> dict[str, Any]:
    """Pack to where there is too little room, then with enough of it."""
    import memfit

    if limit_bytes is not None:
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, unlimited[1]))
    stopped = _tried(lambda: memfit.data.pack(photos, dest, shards=3))
    left = sorted(_files(Path(dest)))
    if limit_bytes is None:
        subprocess.run(["mount", "-o", "remount,size=4m", dest], check=True)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    first: list[int] = []
    pack = memfit.data.pack(photos, dest, shards=3, on_progress=lambda what, done, total: first.append(done))
    memfit.data.pack(photos, f"{dest}.whole", shards=3)
    is_same = _files(Path(dest)) == _files(Path(f"{dest}.whole"))
    return {"stopped": stopped, "left": left, "first": first[0], "elements": pack.elements, "same": is_same}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is full soon; only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _uneven_photos(folder: Path) -> Path:
    _photos(folder, 24)
    _draw(folder / "z" / "large.png", (250, 250))
    return folder


def _check_filled(seen: dict[str, Any], reason: str) -> None:
    assert seen["stopped"].startswith("CannotWrite: cannot write ")
    assert reason in seen["stopped"]
    assert "Shards that are whole are kept" in seen["stopped"]
    assert seen["left"] == [
        "shard-00000.done.json",
        "shard-00000.index.npy",
        "shard-00000.tfrecord",
        *[f"shard-00001.{kind}" for kind in ("done.json", "index.npy", "tfrecord")],
        "unfinished.json",
    ]
    assert seen["first"] == 24
    assert seen["elements"] == 25
    assert seen["same"]


def test_a_full_disk_is_said_and_whole_shards_are_kept(small_disk: Path, tmp_path: Path) -> None:
    photos = _uneven_photos(tmp_path / "photos")
    seen = run_limited(_fill, None, photos=str(photos), dest=str(small_disk), limit_bytes=None)
    _check_filled(seen, "No space left on device")


def test_a_file_that_may_not_grow_is_said_too(tmp_path: Path) -> None:
    photos = _uneven_photos(tmp_path / "photos")
    dest = str(tmp_path / "pack")
    seen = run_limited(_fill, None, photos=str(photos), dest=dest, limit_bytes=100_000)
    _check_filled(seen, "File too large")


def _damage(photos: str, home: str) -> dict[str, Any]:
    """Damage a pack in every way, one after the other, and see what is found."""
    import memfit

    dest, joined = Path(home, "pack"), Path(home, "joined")
    memfit.data.pack(photos, dest, labels="folders", shards=3)
    memfit.data.pack(photos, joined, format="hdf5", size=(8, 8))
    second = np.load(dest / "shard-00001.index.npy")
    offset, length = second[2, :2].tolist()

    def found(folder: Path) -> Any:
        return [[one.file, one.record, one.reason] for one in memfit.data.verify_pack(folder).damages]

    def with_flipped(path: Path, at: int) -> Any:
        content = path.read_bytes()
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        seen = found(path.parent)
        path.write_bytes(content)
        return seen

    def with_manifest(old: str, new: str) -> Any:
        path = dest / "manifest.json"
        content = path.read_text()
        assert old in content
        path.write_text(content.replace(old, new, 1))
        seen = _tried(lambda: found(dest))
        path.write_text(content)
        return seen

    shard = dest / "shard-00001.tfrecord"
    content = shard.read_bytes()
    seen: dict[str, Any] = {
        "sound": [found(dest), found(joined)],
        "data": with_flipped(shard, offset + 12 + length // 2),
        "length": with_flipped(shard, offset),
        "checksum of the length": with_flipped(shard, offset + 8),
        "checksum of the data": with_flipped(shard, offset + 12 + length),
        "index": with_flipped(dest / "shard-00001.index.npy", 128 + 3 * 8 * 2 + 16),
        "row of HDF5": with_flipped(joined / "data.h5", _place_of_last_row(joined / "data.h5")),
        "elements": with_manifest('"elements": 12', '"elements": 13'),
        "features": with_manifest('"label"', '"mark"'),
        "shape": with_manifest('"shape": []', '"shape": [2]'),
        "broken": with_manifest("{", ""),
        "newer": with_manifest('"schema": 1', '"schema": 2'),
    }
    (dest / "shard-00007.tfrecord").touch()
    seen["stranger"] = found(dest)
    (dest / "shard-00007.tfrecord").unlink()
    shard.write_bytes(content[: offset + 20])
    seen["truncated"], seen["records"] = found(dest), len(second)
    shard.unlink()
    seen["missing"] = found(dest)
    return seen


def _place_of_last_row(path: Path) -> int:
    import h5py

    with h5py.File(path) as file:
        row: bytes = file["x"][-1].tobytes()
        assert file["x"].chunks == (1, 8, 8, 3)
    return path.read_bytes().rindex(row)


def test_verifying_names_each_damaged_file_and_record(tmp_path: Path) -> None:
    photos = _photos(tmp_path / "photos")
    seen = run_limited(_damage, None, photos=str(photos), home=str(tmp_path))
    shard = "shard-00001.tfrecord"
    assert seen["sound"] == [[], []]
    assert seen["data"] == [[shard, 2, "its checksum is wrong"]]
    assert (
        seen["length"] == seen["checksum of the length"] == [[shard, 2, "the length in its frame is wrong"]]
    )
    assert seen["checksum of the data"] == [[shard, 2, "the checksum in its frame is wrong"]]
    assert seen["index"] == [
        [shard, None, "shard-00001.index.npy is not what was written"],
        [shard, 2, "its checksum is wrong"],
    ]
    assert seen["row of HDF5"] == [["data.h5", 11, "its checksum is wrong"]]
    assert "13 elements, but 12 in its shards" in seen["elements"]
    assert "features image, label, path, but image, mark, path in the manifest" in seen["features"]
    assert "1 numbers in label, but 2 in the manifest" in seen["shape"]
    assert seen["broken"].startswith("DamagedData: ")
    assert seen["newer"].startswith("RecordTooNew: ")
    assert seen["stranger"] == [["shard-00007.tfrecord", None, "not in the manifest"]]
    lost = range(2, seen["records"])
    assert [found[:2] for found in seen["truncated"]] == [
        [shard, None],
        *([shard, number] for number in lost),
    ]
    assert seen["missing"] == [[shard, None, f"{shard}: No such file or directory"]]


def _pack_large(home: str) -> dict[str, int]:
    """How much memory a pack takes that is much larger than its blocks."""
    import memfit

    path = Path(home, "large.npy")
    large = np.lib.format.open_memmap(path, "w+", np.uint8, (100, 1 << 20))
    del large
    seen: list[int] = []

    def on_progress(what: str, done: int, total: int) -> None:
        lines = Path("/proc/self/status").read_text().splitlines()
        seen.append(int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10)

    memfit.data.pack(path, Path(home, "pack"), workers=2, shard_size="30MiB", on_progress=on_progress)
    return {"first": seen[0], "most": max(seen), "files": len(list(Path(home, "pack").iterdir()))}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="read from /proc")
def test_memory_stays_flat_however_large_the_source_is(tmp_path: Path) -> None:
    seen = run_limited(_pack_large, None, home=str(tmp_path))
    assert seen["most"] - seen["first"] < 48 << 20  # of 100 MiB
    assert seen["files"] == 9
