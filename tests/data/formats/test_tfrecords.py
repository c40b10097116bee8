from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _example(**values: Any) -> bytes:
    import tensorflow as tf

    def feature(value: Any) -> Any:
        value = value if isinstance(value, list) else [value]
        if isinstance(value[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        if isinstance(value[0], int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))

    features = tf.train.Features(feature={name: feature(value) for name, value in values.items()})
    return bytes(tf.train.Example(features=features).SerializeToString())


def _image(number: int) -> bytes:
    import numpy as np
    import tensorflow as tf

    return bytes(tf.io.encode_png(np.full((6, 8, 3), number, np.uint8)).numpy())


def _write(path: Path, records: list[bytes], compression: str = "") -> Path:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


def _numbers(dataset: Any) -> list[int]:
    """The labels of one epoch, each of which must belong to its image."""
    found: list[int] = []
    for x, y in dataset:
        assert [int(image[0, 0, 0]) for image in x.numpy()] == y.numpy().tolist()
        found += y.numpy().tolist()
    return found


def _hundred(folder: Path) -> None:
    """Three files with 100 records of an image and its number, one of them empty."""
    folder.mkdir()
    records = [_example(image=_image(number), label=number) for number in range(100)]
    for name, begin, end in (("a", 0, 37), ("b", 37, 37), ("c", 37, 100)):
        _write(folder / f"{name}.tfrecord", records[begin:end])
    (folder / "notes.txt").write_text("not a record")


def _streams(folder: str) -> dict[str, Any]:
    from memfit.data import from_tfrecords
    from memfit.data.tfrecord import record_index

    path, seen = Path(folder) / "plain", {}
    _hundred(path)
    options: dict[str, Any] = {"size": (6, 8), "dtype": "uint8", "batch_size": 8, "seed": 3}
    whole = from_tfrecords(path, **options)
    epochs = [_numbers(whole) for _ in range(3)]
    seen["length"] = len(whole)
    seen["specs"] = [[spec.dtype.name, spec.shape.as_list()] for spec in whole.element_spec]
    seen["once"] = [sorted(epoch) == list(range(100)) for epoch in epochs]
    seen["orders"] = len({tuple(epoch) for epoch in epochs})
    seen["same seed"] = _numbers(from_tfrecords(path, **options)) == epochs[0]
    later = from_tfrecords(path, start=153, **options)
    seen["start"] = [_numbers(later) == epochs[1][53:], _numbers(later) == epochs[2]]
    in_order = [
        _numbers(from_tfrecords(source, shuffle=False, **options))
        for source in (f"{path}/*.tfrecord", [path / "a.tfrecord", path / "c.tfrecord"])
    ]
    seen["in order"] = [found == list(range(100)) for found in in_order]
    one = from_tfrecords(path / "a.tfrecord", batch_size=None, size=(6, 8))
    seen["one file"] = sorted(int(y) for _, y in one) == list(range(37))

    find_frames = record_index.find_frames
    scanned: list[bytes] = []

    def watched(name: bytes) -> Any:
        scanned.append(name)
        return find_frames(name)

    record_index.find_frames = watched
    from_tfrecords(path, **options)
    seen["scanned again"] = len(scanned)
    _write(path / "b.tfrecord", [_example(image=_image(200), label=200)])
    seen["a new record"] = 200 in _numbers(from_tfrecords(path, **options))
    seen["scanned when changed"] = len(scanned)
    return seen


def test_records_come_once_in_other_orders_and_from_any_start_on(tmp_path: Path) -> None:
    home = {"MEMFIT_HOME": str(tmp_path / "home")}
    seen = run_limited(_streams, None, environment=home, folder=str(tmp_path))
    assert seen["length"] == 13
    assert seen["specs"] == [["uint8", [None, 6, 8, 3]], ["int64", [None]]]
    assert seen["once"] == [True, True, True]
    assert seen["orders"] == 3
    assert seen["same seed"]
    assert seen["start"] == [True, True]
    assert seen["in order"] == [True, True]
    assert seen["one file"]
    assert seen["scanned again"] == 0
    assert seen["a new record"]
    assert seen["scanned when changed"] == 3


def _schemas(folder: str) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from memfit.core.errors import MemfitError
    from memfit.data import from_tfrecords

    def plain(part: Any) -> Any:
        values = part.numpy().tolist()
        return [value.decode() for value in values] if part.dtype == tf.string else values

    def first(*arguments: Any, **options: Any) -> Any:
        dataset = from_tfrecords(*arguments, shuffle=False, batch_size=2, **options)
        return tf.nest.map_structure(plain, next(iter(dataset)))

    def refused(*arguments: Any, **options: Any) -> str:
        try:
            from_tfrecords(*arguments, **options)
        except MemfitError as error:
            return str(error)
        return "accepted"

    place, seen = Path(folder), {}
    mixed = [
        _example(
            **{"image/encoded": _image(number), "image/class/label": number, "name": b"BM of %d" % number},
            box=[0.5, float(number)],
            tokens=[1] * (number + 1),
        )
        for number in range(4)
    ]
    path = _write(place / "mixed.tfrecord", mixed)
    x, y = first(path, size=(6, 8), dtype="uint8")
    seen["found"] = [np.array(x)[:, 0, 0, 0].tolist(), y]
    seen["text as x"] = first(path, x="name")
    seen["a dict"] = first(path, x=["box", "name"], y=[])
    seen["own target"] = first(path, x="box", y="input")
    seen["augmented"] = first(path, x="box", augment=lambda box: box + 1)
    label = tf.io.FixedLenFeature((), tf.int64, default_value=-1)
    seen["given"] = first(path, features={"box": tf.io.FixedLenFeature((2,), tf.float32), "label": label})
    seen["raw"] = [record.numpy().tolist() for record in from_tfrecords(path, features="raw", shuffle=False)]
    seen["raw"] = seen["raw"] == [mixed]

    def padded(record: Any) -> Any:
        tokens = tf.io.parse_single_example(record, {"tokens": tf.io.VarLenFeature(tf.int64)})["tokens"]
        tokens = tf.sparse.to_dense(tokens)[:3]
        return {"tokens": tf.ensure_shape(tf.pad(tokens, [[0, 3 - tf.size(tokens)]]), (3,))}

    seen["made"] = first(path, features=padded)
    two = _write(place / "two.tfrecord", [_example(a=[1, 2], b=[1, 2], label=1, y=1)])
    other = _write(place / "other.tfrecord", [b"something else"])
    sequence = tf.train.SequenceExample()
    sequence.feature_lists.feature_list["words"].feature.add().int64_list.value.append(1)
    words = _write(place / "words.tfrecord", [sequence.SerializeToString()])
    (place / "nothing").mkdir()
    seen["refused"] = [
        refused(path),
        refused(path, x="tokens", y=[]),
        refused(path, x="absent"),
        refused(two),
        refused(two, y="label"),
        refused(other),
        refused(words),
        refused(path, features="all"),
        refused(path, features="raw", x="box"),
        refused(path, x=["box"], augment=lambda box: box),
        refused(place / "nothing"),
        refused(place / "absent*.tfrecord"),
        refused([place / "absent.tfrecord"]),
        refused(path, x="box", ram="1MiB"),
        refused(path, x="box", batches=3),
        refused(path, features=lambda record: tf.io.decode_raw(record, tf.uint8)),
    ]
    return seen


def test_what_is_in_records_is_found_or_asked_for(tmp_path: Path) -> None:
    seen = run_limited(_schemas, None, folder=str(tmp_path))
    assert seen["found"] == [[0, 1], [0, 1]]
    # Text that begins like a bitmap is no image.
    assert seen["text as x"] == [["BM of 0", "BM of 1"], [0, 1]]
    assert seen["a dict"] == {"box": [[0.5, 0.0], [0.5, 1.0]], "name": ["BM of 0", "BM of 1"]}
    assert seen["raw"]
    assert seen["own target"] == [[[0.5, 0.0], [0.5, 1.0]]] * 2
    assert seen["augmented"] == [[[1.5, 1.0], [1.5, 2.0]], [0, 1]]
    assert seen["given"] == [[[0.5, 0.0], [0.5, 1.0]], [-1, -1]]
    assert seen["made"] == {"tokens": [[1, 0, 0], [1, 1, 0]]}
    expected = [
        "size=(6, 8)",
        "tokens (1 to 4 values)",
        "records have no feature 'absent'",
        "2 features are called like a target",
        "2 features could be the input",
        "no tf.train.Examples",
        "SequenceExample with words",
        "features='all'",
        "x='box'",
        "augment is a function of one x",
        "nothing to stream in",
        "nothing to stream in",
        "nothing of that name",
        "cannot be streamed within ram=1.0 MiB",
        "streams have no argument batches",
        "cannot be batched",
    ]
    for message, part in zip(seen["refused"], expected, strict=True):
        assert part in message, message


def _damaged(folder: str) -> dict[str, Any]:
    import tensorflow as tf

    from memfit.core.errors import DamagedData
    from memfit.data import from_tfrecords

    place, seen = Path(folder), {}
    records = [_example(image=_image(number), label=number) for number in range(9)]
    sound = _write(place / "sound.tfrecord", records).read_bytes()
    begin = sum(len(record) + 16 for record in records[:4])

    def changed(offset: int) -> bytes:
        data = bytearray(sound)
        data[offset] ^= 1
        return bytes(data)

    broken = [*records[:4], _example(image=_image(4)[:40], label=4), *records[5:]]
    kinds = {
        "data": changed(begin + 30),
        "checksum": changed(begin + 12 + len(records[4])),
        "length": changed(begin),
        "end": sound[: begin + 50],
        "image": _write(place / "image.tfrecord", broken).read_bytes(),
        "beginning": changed(3),
    }
    for kind, data in kinds.items():
        path = place / f"{kind}.tfrecord"
        path.write_bytes(data)
        (place / "more.tfrecord").write_bytes(_write(place / "last.tfrecord", records[8:]).read_bytes())
        options: dict[str, Any] = {"size": (6, 8), "batch_size": 2}
        try:
            for _ in from_tfrecords([path, place / "more.tfrecord"], **options):
                pass
            raised = "nothing"
        except DamagedData as error:
            raised = f"at once: {error}"
        except tf.errors.OpError as error:  # what is raised in a pipeline comes so
            raised = str(error)
        skipping = from_tfrecords([path, place / "more.tfrecord"], on_error="skip", **options)
        kept = [sorted(_numbers(skipping)) for _ in range(2)]
        lost = [str(found) for found in skipping.memfit_losses.skipped.values()]
        seen[kind] = [raised, kept[0], kept[0] == kept[1], lost, begin, len(data)]
    path.write_bytes(sound)
    changing = from_tfrecords(path, **options)
    path.write_bytes(sound[:begin])
    try:
        _numbers(changing)
    except tf.errors.OpError as error:
        seen["shorter than before"] = str(error)
    return seen


def test_damage_of_each_kind_is_named_or_skipped(tmp_path: Path) -> None:
    seen = run_limited(_damaged, None, folder=str(tmp_path))
    begin, size = seen["data"][4:]
    fourth = f"record 4 (byte {begin:,})"
    for kind, reason in (
        ("data", "its data do not match their checksum"),
        ("checksum", "its data do not match their checksum"),
        ("image", ""),
    ):
        raised, kept, is_same, (lost,), *_ = seen[kind]
        assert f"{kind}.tfrecord, {fourth}" in raised
        assert reason in raised
        assert kept == [0, 1, 2, 3, 5, 6, 7, 8, 8]
        assert is_same
        assert f"{kind}.tfrecord, {fourth}" in lost
    for kind, place, reason in (
        ("length", fourth, f"its length is damaged; the rest of the file, {size - begin:,} bytes, is lost"),
        ("end", fourth, "the file ends in it; the rest of the file, 50 bytes, is lost"),
        ("beginning", "record 0 (byte 0)", f"its length is damaged; the rest of the file, {size:,} bytes"),
    ):
        raised, kept, is_same, (lost,), *_ = seen[kind]
        assert raised.startswith("at once")
        for message in (raised, lost):
            assert f"{kind}.tfrecord, {place}" in message
            assert reason in message
        assert kept == ([8] if kind == "beginning" else [0, 1, 2, 3, 8])
        assert is_same
    assert "the file ends in it" in seen["shorter than before"]


def _packed(folder: str) -> dict[str, Any]:
    import json
    import zlib

    import numpy as np
    import tensorflow as tf

    from memfit.core.errors import MemfitError
    from memfit.data import from_tfrecords

    def pack(name: str, records: list[list[bytes]], features: dict[str, Any]) -> Path:
        place, shards = Path(folder) / name, []
        place.mkdir()
        for number, part in enumerate(records):
            path = _write(place / f"shard-{number:05}.tfrecord", part)
            lengths = np.array([len(record) for record in part], np.int64)
            offsets = np.cumsum(lengths + 16) - lengths - 16
            np.save(
                path.with_suffix(".index.npy"), np.stack([offsets, lengths, [zlib.crc32(r) for r in part]], 1)
            )
            index = zlib.crc32(path.with_suffix(".index.npy").read_bytes())
            size = path.stat().st_size
            shards.append({"name": path.name, "elements": len(part), "bytes": size, "crc32": index})
        manifest = {
            "schema": 1,
            "kind": "pack",
            "format": "tfrecord",
            "elements": sum(map(len, records)),
            "features": features,
            "class_names": ["cat", "dog"] if "image" in features else None,
            "source": {"path": "photos", "kind": "images", "fingerprint": "1f"},
            "shards": shards,
        }
        (place / "manifest.json").write_text(json.dumps(manifest))
        return place

    def refused(place: Path, **options: Any) -> str:
        try:
            for _ in from_tfrecords(place, **options):
                pass
        except (tf.errors.OpError, MemfitError) as error:
            return f"{isinstance(error, MemfitError)}: {error}"
        return "accepted"

    label = {"kind": "number", "dtype": "int32", "shape": []}
    images = [_example(image=_image(number), label=number, path=b"%d.png" % number) for number in range(50)]
    features = {"image": {"kind": "image"}, "label": label, "path": {"kind": "text"}}
    photos = pack("photos", [images[:20], images[20:]], features)
    dataset = from_tfrecords(photos, size=(6, 8))
    seen: dict[str, Any] = {"once": sorted(_numbers(dataset)) == list(range(50))}
    seen["classes"], seen["label"] = dataset.class_names, dataset.element_spec[1].dtype.name
    seen["not asked"] = not list(Path(folder).glob("home/frame_lists/*"))
    rows = np.arange(40, dtype="<u4").reshape(5, 4, 2)
    arrays = [_example(x=row.tobytes(), y=[float(row.sum()), 1.0]) for row in rows]
    shapes = {"x": {"kind": "array", "dtype": "uint32", "shape": [4, 2]}}
    shapes["y"] = {"kind": "number", "dtype": "float64", "shape": [2]}
    ((x, y),) = list(from_tfrecords(pack("arrays", [arrays], shapes), shuffle=False))
    seen["arrays"] = x.dtype == "uint32" and np.array_equal(x, rows)
    seen["targets"] = y.dtype == "float64" and y.numpy()[:, 0].tolist() == rows.sum((1, 2)).tolist()

    second = photos / "shard-00001.tfrecord"
    sound = second.read_bytes()
    second.write_bytes(sound[: 16 + len(images[20])])
    seen["shorter"] = refused(photos, size=(6, 8))
    skipping = from_tfrecords(photos, size=(6, 8), on_error="skip")
    seen["left"] = [sorted(_numbers(skipping)), len(skipping.memfit_losses.skipped)]
    second.write_bytes(sound)
    second.with_suffix(".index.npy").write_bytes(b"damaged")
    seen["without index"] = sorted(_numbers(from_tfrecords(photos, size=(6, 8)))) == list(range(50))
    second.unlink()
    seen["missing"] = refused(photos, size=(6, 8))
    return seen


def test_a_pack_needs_no_description(tmp_path: Path) -> None:
    home = {"MEMFIT_HOME": str(tmp_path / "home")}
    seen = run_limited(_packed, None, environment=home, folder=str(tmp_path))
    assert seen["once"]
    assert seen["classes"] == ["cat", "dog"]
    assert seen["label"] == "int32"
    assert seen["not asked"]
    assert seen["arrays"]
    assert seen["targets"]
    assert "shard-00001.tfrecord, record " in seen["shorter"]
    assert "the file ends in it" in seen["shorter"]
    assert seen["left"] == [list(range(21)), 29]
    assert seen["without index"]
    assert seen["missing"].startswith("True: ")
    assert "shard-00001.tfrecord with 30 records" in seen["missing"]


def _read(path: Path, data: bytes) -> list[Any]:
    """How many records there are in a file of these data, and what is said at the end."""
    from memfit.core.errors import DamagedData
    from memfit.data.tfrecord.sequences import records_of

    before, found = path.read_bytes(), 0
    path.write_bytes(data)
    try:
        for _ in records_of(bytes(path)):
            found += 1
    except DamagedData as error:
        return [found, str(error)]
    finally:
        path.write_bytes(before)
    return [found, "whole"]


def _arrays(batch: Any) -> list[Any]:
    return [part.numpy() for part in batch]


def _compressed(folder: str) -> dict[str, Any]:
    import tensorflow as tf

    from memfit.core.errors import MemfitError
    from memfit.data import from_tfrecords

    place, seen = Path(folder), {}
    records = [_example(image=_image(number), label=number) for number in range(60)]
    paths = [
        _write(place / "a.tfrecord.gz", records[:20], "GZIP"),
        _write(place / "b.tfrecord.zlib", records[20:40], "ZLIB"),
        _write(place / "c.tfrecord", records[40:]),
    ]
    options: dict[str, Any] = {"size": (6, 8), "batch_size": 8}
    dataset = from_tfrecords(place, **options)
    epochs = [_numbers(dataset) for _ in range(2)]
    seen["once"] = [sorted(epoch) == list(range(60)) for epoch in epochs]
    seen["orders"] = epochs[0] != epochs[1] != list(range(60))
    seen["start"] = _numbers(from_tfrecords(place, start=16, **options)) == epochs[0][16:]
    seen["in order"] = _numbers(from_tfrecords(paths, shuffle=False, **options)) == list(range(60))
    doubled = from_tfrecords(paths[0], augment=lambda x: x[:3] * 2, **options)
    seen["augmented"] = all(
        x.shape[1] == 3 and (x[:, 0, 0, 0] == 2 * y).all() for x, y in map(_arrays, doubled)
    )
    for path in paths:
        data = path.read_bytes()
        seen[path.name] = [
            _read(path, data[:end]) for end in (len(data) - 1, len(data) - 30, len(data) // 2 + 5)
        ]
        seen[path.name] += [_read(path, data), _read(path, data + data)]
    paths[0].write_bytes(paths[0].read_bytes()[:-200])
    messages = []
    for more in ({"shuffle": False}, {"on_error": "skip"}):
        try:
            _numbers(from_tfrecords(paths, **options, **more))
        except (tf.errors.OpError, MemfitError) as error:
            messages.append(f"{isinstance(error, MemfitError)}: {error}")
    seen["messages"] = messages
    return seen


def test_compressed_files_are_read_in_sequence(tmp_path: Path) -> None:
    seen = run_limited(_compressed, None, folder=str(tmp_path))
    assert seen["once"] == [True, True]
    assert seen["orders"]
    assert seen["start"]
    assert seen["in order"]
    assert seen["augmented"]
    for name in ("a.tfrecord.gz", "b.tfrecord.zlib", "c.tfrecord"):
        *cut, whole, doubled = seen[name]
        for found, message in cut:
            assert f"{name}, record {found}" in message  # cut off between two records too
        assert whole == [20, "whole"]
        assert doubled == [40, "whole"]
    damaged, skipping = seen["messages"]
    assert "a.tfrecord.gz, record " in damaged
    assert skipping.startswith("True: nothing can be left out of compressed records")
