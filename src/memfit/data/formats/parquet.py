"""`from_parquet`: columns of Parquet files as batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from memfit.core.errors import InvalidStream, NoData, PackageMissing
from memfit.data.reading.columns import check_rows, open_columns
from memfit.data.reading.files import list_files
from memfit.data.reading.row_groups import Group, GroupedColumn
from memfit.data.stream.options import StreamOptions, read_options

_SUFFIXES = (b".parquet", b".pq")
_LISTED = 20


class Table(NamedTuple):
    """Files with the same columns, one after the other."""

    where: str
    groups: list[RowGroup]
    types: dict[str, Any]  # of the columns that are used, as pyarrow calls them


class RowGroup(NamedTuple):
    """A part of a file that is read at once."""

    path: Path
    number: int  # in its file
    begin: int  # its first row in the file
    size: int


def from_parquet(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    x: str | Sequence[str],
    y: str | Sequence[str] | None = None,
    **options: Unpack[StreamOptions],
) -> Any:
    """Rows of Parquet files as a `tf.data.Dataset` that stays within `ram`.

    source: a file, a list of files, or a folder of them.
    x, y: a column of numbers or of lists of one length, or several columns of numbers, which become one
        matrix; y="input" if the input is its own target, as for an autoencoder.
    shuffle: "groups" unless told: row groups come in a random order, and the rows of as many as ram has room
        for are mixed. With True any row may come next, and each row group is read again and again.

        dataset = memfit.data.from_parquet("trips", x=["distance", "hour"], y="fare", ram="512MiB")
        model.fit(dataset)
    """
    options.setdefault("shuffle", "groups")
    settings = read_options(**options)
    is_own_target = isinstance(y, str) and y == "input"
    chosen = [x] if y is None or is_own_target else [x, y]
    table = _open_table(_find_paths(source), [name for names in chosen for name in _listed(names)])
    inputs, *targets = (_column(table, names) for names in chosen)
    return open_columns(inputs, targets[0] if targets else None, settings, is_own_target=is_own_target)


def _listed(names: Any) -> list[str]:
    listed = [names] if isinstance(names, str) else list(names)
    if listed and all(isinstance(name, str) for name in listed):
        return listed
    raise InvalidStream(
        "columns are chosen by their names.",
        expected="a name, or a list of names",
        received=repr(names),
        suggestion='x=["a", "b"]',
    )


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # makes it part of pyarrow
    except ImportError as error:
        raise PackageMissing("pyarrow", extra="parquet") from error
    return pyarrow


def _find_paths(source: Any) -> list[Path]:
    if not isinstance(source, (str, os.PathLike)):
        paths = [Path(path) for path in source]
    elif Path(source).is_dir():
        paths = [Path(os.fsdecode(name)) for name in list_files(Path(source), _SUFFIXES)]
    else:
        paths = [Path(source)]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None or not paths:
        raise NoData(
            missing or source,
            expected="a .parquet file, a list of them, or a folder that has some",
            found="no such file" if missing else "none",
            suggestion="the path of a .parquet file",
        )
    return paths


def _open_table(paths: list[Path], names: list[str]) -> Table:
    """All row groups that have rows, if all files have these columns."""
    groups: list[RowGroup] = []
    types: dict[str, Any] = {}
    for path in paths:
        schema, sizes = _read_footer(path)
        found = {name: _type(schema, name, path) for name in names}
        types = types or found
        _check_same(types, found, path)
        begins = [0, *np.cumsum(sizes).tolist()]
        groups += [RowGroup(path, number, begins[number], size) for number, size in enumerate(sizes) if size]
    if not groups:
        raise NoData(paths[0], expected="at least one row", found="none", suggestion="a file with rows")
    others = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return Table(f"{paths[0]}{others}", groups, types)


def _type(schema: Any, name: str, path: Path) -> Any:
    if name in schema.names:
        return schema.field(name).type
    more = f" and {len(schema.names) - _LISTED:,} more" if len(schema.names) > _LISTED else ""
    raise InvalidStream(
        f"{path} has no column {name!r}.",
        expected=f"one of {', '.join(map(repr, schema.names[:_LISTED]))}{more}",
        received=repr(name),
        suggestion=f"x={schema.names[0]!r}" if schema.names else "another file",
    )


def _check_same(types: dict[str, Any], found: dict[str, Any], path: Path) -> None:
    for name, kind in types.items():
        if found[name] != kind:
            raise InvalidStream(
                f"column {name!r} of {path} is of another type than in the first file.",
                expected=str(kind),
                received=str(found[name]),
                suggestion="files with the same columns",
            )


def _read_footer(path: Path) -> tuple[Any, list[int]]:
    """The columns of a file, and the sizes of its row groups."""
    arrow = _pyarrow()
    try:
        with arrow.parquet.ParquetFile(path) as file:
            metadata = file.metadata
            sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            return file.schema_arrow, sizes
    except (arrow.ArrowException, OSError) as error:
        raise InvalidStream(
            f"{path} cannot be opened as a Parquet file.",
            expected="a Parquet file that is whole",
            received=str(error),
            suggestion="pyarrow.parquet.read_metadata(path), to see what is in it",
        ) from error


def _column(table: Table, names: str | Sequence[str]) -> RowGroupColumn:
    """A column, or several side by side."""
    layouts = {name: _layout(table, name) for name in _listed(names)}
    if isinstance(names, str):
        return RowGroupColumn(table, names, *layouts[names])
    _check_scalars(layouts)
    dtype = np.result_type(*(dtype for dtype, _ in layouts.values()))
    return RowGroupColumn(table, names, dtype, (len(names),))


def _layout(table: Table, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type of the numbers of a column, and the shape of its lists."""
    kind, shape = table.types[name], []
    while _pyarrow().types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
    except NotImplementedError:
        dtype = np.dtype(object)
    where = f"column {name!r} ({table.types[name]}) of {table.where}"
    found, (_, *row_shape) = check_rows(dtype, (table.groups[0].size, *shape), where)
    return found, tuple(row_shape)


def _check_scalars(layouts: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
    for name, (_, shape) in layouts.items():
        if shape:
            raise InvalidStream(
                "a column of lists cannot be one of several.",
                expected="columns of numbers, or one column of lists by its name",
                received=f"column {name!r} with lists of shape {shape}",
                suggestion=f"x={name!r}",
            )


class RowGroupColumn(GroupedColumn):
    """Rows of one column, or of several side by side."""

    def __init__(
        self, table: Table, names: str | Sequence[str], dtype: np.dtype[Any], row_shape: tuple[int, ...]
    ) -> None:
        self._groups, self._names = table.groups, _listed(names)
        self._is_matrix = not isinstance(names, str)
        where = f"{', '.join(map(repr, self._names))} of {table.where}"
        super().__init__(where, dtype, row_shape, np.array([group.size for group in table.groups], np.int64))

    @property
    def working_bytes(self) -> int:
        """A group as pyarrow reads it, as it is taken apart, and as it is kept."""
        return 3 * self.group_bytes

    def name(self, index: int) -> str:
        """The row in its file."""
        number = self.number(index)
        group = self._groups[number]
        return f"row {group.begin + index - self.begin(number):,} of {group.path}"

    def load(self, number: int) -> Group:
        """A row group as an array."""
        arrow, group = _pyarrow(), self._groups[number]
        try:
            with arrow.parquet.ParquetFile(group.path, page_checksum_verification=True) as file:
                table = file.read_row_group(group.number, columns=self._names, use_threads=False)
            return self._joined([table.column(name).combine_chunks() for name in self._names])
        except arrow.ArrowException as error:
            raise ValueError(str(error)) from error

    def _joined(self, columns: list[Any]) -> Group:
        if not self._is_matrix:
            return _numbers(columns[0], self.dtype, self.shape[1:])
        parts = [_numbers(column, self.dtype, ()) for column in columns]
        missing = [part.is_missing for part in parts if part.is_missing is not None]
        values = np.stack([part.values for part in parts], axis=1)
        return Group(values, np.any(missing, axis=0) if missing else None)


def _numbers(array: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Group:
    """The numbers of a column, or of its lists; those that are missing are zeros, and marked."""
    count, missing = len(array), []
    for size in (None, *shape):
        if size is not None:
            array = array.values.slice(array.offset * size, len(array) * size)
        if array.null_count:
            nulls = array.is_null().to_numpy(zero_copy_only=False)
            missing.append(nulls.reshape(count, -1).any(axis=1))
    if array.null_count:
        array = array.fill_null(_pyarrow().scalar(0).cast(array.type))
    values = array.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    return Group(values.reshape(count, *shape), np.any(missing, axis=0) if missing else None)
