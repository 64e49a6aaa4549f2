"""Encoding: everything needed to turn a new row or image into a model's inputs, and its outputs into the target.

Training uses the same object, so a prediction cannot read a row differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from playerfl.data.encoding.cells import Cells, Numbers, cells_of, refuse_flags_among_numbers
from playerfl.data.encoding.columns import ColumnKind
from playerfl.data.encoding.rules import CellRules
from playerfl.data.encoding.scaling import Scale, scaled
from playerfl.data.readers.image_folders import Pictures, read_picture_files
from playerfl.data.readers.site_tables import SiteTable, read_site_table
from playerfl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1


@dataclass(frozen=True)
class ColumnEncoding:
    """A column's kind, and the scale of each input it becomes, at one site."""

    kind: ColumnKind
    scales: tuple[Scale, ...]


@dataclass(frozen=True)
class TableEncoding:
    """How the rows of a site's table become inputs."""

    columns: tuple[ColumnEncoding, ...]
    """In the order of the model's inputs."""
    ignored: tuple[str, ...] = ()
    """Columns that a table may have, but that are not inputs: the target, the group, those left out."""
    missing_codes: tuple[str, ...] = ()
    """Values that stand for a missing one."""
    fills_missing: bool = False
    """Whether a missing value gets the fill value of its input; otherwise it is refused."""
    recode: tuple[str, ...] = ()
    """Values that are read as others, at this site."""

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.kind.input_names)

    def read(self, path: Path) -> SiteTable:
        """The rows of a CSV, Parquet or npz file; its index has their row numbers in the file."""
        return read_site_table(path, text_columns=[c.kind.name for c in self.columns if c.kind.as_text])

    def encode(self, rows: SiteTable | pd.DataFrame) -> Tensor:
        """Inputs (rows, inputs) of new rows. Refuses missing and unknown columns, and cells that it cannot read."""
        return self.scaled(self.raw(rows))

    def raw(self, rows: SiteTable | pd.DataFrame) -> Numbers:
        """The same before scaling; nan where a value is missing."""
        table = rows if isinstance(rows, SiteTable) else SiteTable("the table", rows)
        self._check_columns(table)
        rules = CellRules(self.missing_codes, self.recode)
        cells = [cells_of(table, column.kind.name, as_text=column.kind.as_text, rules=rules) for column in self.columns]
        if not self.fills_missing:
            for of_column in cells:
                of_column.refuse_missing("or leave out the row: the model was trained without missing values")
        for column, of_column in zip(self.columns, cells, strict=True):
            if column.kind.kind == "number" and not column.scales[0].may_hold_flags:
                refuse_flags_among_numbers(of_column, ": the model was trained with numbers")
        remedy = "clear the cell" if self.fills_missing else "leave out the row"
        return raw_inputs([column.kind for column in self.columns], cells, remedy)

    def scaled(self, raw: Numbers) -> Tensor:
        """Raw inputs (see `raw_inputs`) as the model takes them."""
        return torch.from_numpy(scaled(raw, self.scales))

    @cached_property
    def scales(self) -> list[Scale]:
        return [scale for column in self.columns for scale in column.scales]

    def _check_columns(self, table: SiteTable) -> None:
        names = [column.kind.name for column in self.columns]
        held = [str(name) for name in table.frame.columns]
        if lacking := [name for name in names if name not in held]:
            raise DataError(f"{table.file} has no column {', '.join(map(repr, lacking))}; the model needs it")
        if others := [name for name in held if name not in names and name not in self.ignored]:
            raise DataError(
                f"{table.file} has a column {others[0]!r}, which the model does not know; remove it. The model's "
                f"columns are: {', '.join(names)}"
            )


def raw_inputs(kinds: Sequence[ColumnKind], cells: Sequence[Cells], remedy: str | None = None) -> Numbers:
    """Inputs (rows, inputs) before scaling; nan where a value is missing. `remedy`: see `ColumnKind.inputs`."""
    options = {} if remedy is None else {"remedy": remedy}
    return np.concatenate([kind.inputs(of, **options) for kind, of in zip(kinds, cells, strict=True)], axis=1)


@dataclass(frozen=True)
class PictureEncoding:
    """How a site's images become inputs: scaled to a square, with colours from -1 to 1."""

    side: int
    low: float = 0.0
    high: float = 65535.0
    """The range of a site's 16-bit training images, which becomes -1 to 1; often only 12 of the 16 bits are used.
    8-bit images always have the range 0 to 255."""
    channels: int = 3
    mixes_depths: bool = False
    """Whether there were both 8-bit and 16-bit training images."""

    @staticmethod
    def fitted(side: int, train: Pictures) -> PictureEncoding:
        """The encoding for a site with these training images.

        The darkest and brightest thousandth of the pixels do not count: a dead pixel must not decide the range.
        """
        deep = train.pixels[train.is_deep]
        if len(deep) == 0:
            return PictureEncoding(side)
        low, high = np.percentile(deep[:, 0], (0.1, 99.9)).tolist()
        return PictureEncoding(side, low, max(high, low + 1), mixes_depths=not bool(train.is_deep.all()))

    def encode(self, files: Sequence[Path]) -> Tensor:
        """Inputs (images, channels, side, side) of image files."""
        pictures = read_picture_files(files, self.side)
        trained_with_8 = (self.low, self.high) == (PictureEncoding.low, PictureEncoding.high)
        if pictures.is_deep.any() and trained_with_8:
            first = files[int(pictures.is_deep.argmax())]
            raise DataError(
                f"{first.name} has 16 bits per colour, but the model was trained with 8-bit images; convert it to 8"
            )
        if not pictures.is_deep.all() and not self.mixes_depths and not trained_with_8:
            first = files[int(pictures.is_deep.argmin())]
            raise DataError(
                f"{first.name} has 8 bits per colour, but the model was trained with 16-bit images; give the 16-bit one"
            )
        return self.scaled(pictures)

    def scaled(self, pictures: Pictures) -> Tensor:
        """Images as the model takes them."""
        pixels = pictures.pixels
        inputs = torch.from_numpy(pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)).float()
        deep = torch.from_numpy(pictures.is_deep)
        ranged = (inputs[deep] - self.low).mul_(2 / (self.high - self.low)).sub_(1).clamp_(-1, 1)
        inputs.div_(127.5).sub_(1)
        inputs[deep] = ranged
        return inputs


@dataclass(frozen=True)
class TargetEncoding:
    """What a model's outputs mean: one of the classes, or a number in the target's units."""

    name: str
    classes: tuple[str, ...] = ()
    """In the order of the model's outputs; empty if the target is a number."""
    mean: float = 0.0
    spread: float = 1.0
    """A number is scaled to (value - mean) / spread, the same at all sites."""
    robust: bool = False
    """Whether these are the median and the robust spread, because the target is heavy-tailed."""

    def scaled(self, numbers: Tensor) -> Tensor:
        """Numbers in the target's units as the model learns them."""
        return ((numbers - self.mean) / self.spread).float()

    def in_units(self, outputs: Tensor) -> Tensor:
        """A model's outputs, one per row, in the target's units.

        >>> TargetEncoding("weight", mean=70, spread=10).in_units(torch.tensor([[0.0], [1.5]]))
        tensor([70., 85.], dtype=torch.float64)
        """
        return outputs.reshape(len(outputs)).double() * self.spread + self.mean

    def predicted_classes(self, outputs: Tensor) -> list[str]:
        """The names of the classes with the largest outputs.

        >>> TargetEncoding("outcome", ("home", "readmitted")).predicted_classes(torch.tensor([[0.1, 2.0]]))
        ['readmitted']
        """
        return [self.classes[position] for position in outputs.argmax(1).tolist()]


@dataclass(frozen=True)
class Encoding:
    """How one site's data become inputs and targets."""

    inputs: TableEncoding | PictureEncoding
    target: TargetEncoding

    def as_dict(self) -> dict[str, Any]:
        """Plain data that can be written as JSON."""
        kind = "table" if isinstance(self.inputs, TableEncoding) else "pictures"
        return {"version": VERSION, kind: asdict(self.inputs), "target": asdict(self.target)}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Encoding:
        """Reads what `as_dict` returned; refuses anything else."""
        from pydantic import ValidationError

        if not isinstance(stored, Mapping) or stored.get("version") != VERSION:
            version = stored.get("version") if isinstance(stored, Mapping) else None
            raise DataError(
                f"the encoding has the version {version!r}, but this version of playerfl reads {VERSION}; export the "
                "model again"
            )
        kind: Any = TableEncoding if "table" in stored else PictureEncoding
        try:
            inputs = _reader(kind).validate_python(stored.get("table", stored.get("pictures")))
            target = _reader(TargetEncoding).validate_python(stored.get("target"))
        except ValidationError as problem:
            first = problem.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise DataError(
                f"the encoding cannot be read: {place}: {first['msg']}; export the model again"
            ) from problem
        _check_scales(inputs)
        return Encoding(inputs, target)


@cache
def _reader(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _check_scales(inputs: TableEncoding | PictureEncoding) -> None:
    if isinstance(inputs, PictureEncoding):
        return
    for column in inputs.columns:
        if len(column.scales) != column.kind.width:
            raise DataError(
                f"the encoding cannot be read: column {column.kind.name!r} has {len(column.scales)} scales for "
                f"{column.kind.width} inputs; export the model again"
            )
