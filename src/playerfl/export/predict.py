"""Predictions for new rows or images, and the table they are written to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from playerfl.data.encoding.encoding import PictureEncoding, TableEncoding
from playerfl.data.readers.image_folders import ENDINGS as PICTURE_ENDINGS
from playerfl.data.readers.image_folders import listed
from playerfl.data.readers.npz import read_arrays, read_inputs
from playerfl.data.readers.site_tables import ENDINGS as TABLE_ENDINGS
from playerfl.data.readers.site_tables import SiteTable
from playerfl.errors import ConfigError, DataError
from playerfl.export.folder import ExportedModel, ModelFolderError, read_folder, tensor_for
from playerfl.storage.csv_table import csv_text

_ROWS_AT_ONCE = 512
_PICTURES_AT_ONCE = 64


@dataclass(frozen=True)
class Predictions:
    """One row per row or image: where it comes from, then what the model predicts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def csv(self) -> str:
        """The text of a CSV file, in which no cell is a formula."""
        return csv_text((self.columns, *self.rows))


def predict(folder: Path | str, new: Path | str) -> Predictions:
    """The predictions of the model in a folder for the rows of a table, or for an image or a folder of images.

    The table or images must be like those the model was trained on; anything else is refused in a sentence that
    names the file, the column and the row.
    """
    model = read_folder(Path(folder))
    given = Path(new)
    if not given.exists():
        raise DataError(f"there is no file {given}")
    encoding = model.encoding.inputs if model.encoding is not None else None
    if isinstance(encoding, TableEncoding):
        return _of_table(model, encoding, given)
    if isinstance(encoding, PictureEncoding):
        return _of_pictures(model, encoding, given)
    return _of_arrays(model, given)


def _of_table(model: ExportedModel, encoding: TableEncoding, given: Path) -> Predictions:
    if given.is_dir() or not given.name.lower().endswith(TABLE_ENDINGS):
        raise DataError(f"{given} is not a table; this model takes {', '.join(TABLE_ENDINGS)}")
    table = _new_rows(encoding, given)
    raw = torch.from_numpy(encoding.raw(table))
    numbers = [int(number) for number in table.frame.index]
    # Identifiers that were left out of the training help to match predictions with patients.
    known = [name for name in encoding.ignored if name != model.target.name and name in table.frame.columns]
    before = [[_cell(value) for value in table.frame[name]] for name in known]
    batches = ((raw[start : start + _ROWS_AT_ONCE],) for start in range(0, len(raw), _ROWS_AT_ONCE))
    places = [f"{table.file}, row {number}" for number in numbers]
    return _answers(model, ("row", *known), list(zip(numbers, *before, strict=True)), places, batches)


def _new_rows(encoding: TableEncoding, given: Path) -> SiteTable:
    if not given.name.lower().endswith(".npz"):
        return encoding.read(given)
    import pandas as pd

    # Without the y that a site's file has: it is what we want to know.
    inputs = read_inputs(given)
    frame = pd.DataFrame(inputs, columns=[f"x{i}" for i in range(inputs.shape[1])])
    frame.index += 1
    return SiteTable(given.name, frame)


def _of_pictures(model: ExportedModel, encoding: PictureEncoding, given: Path) -> Predictions:
    files = listed(given) if given.is_dir() else [given]
    for file in files:
        if not file.is_file() or not file.name.lower().endswith(PICTURE_ENDINGS):
            raise DataError(f"{file} is not a .png or .jpg image; give an image, or a folder with nothing but images")
    if not files:
        raise DataError(f"{given} has no images; give an image, or a folder of images")
    starts = range(0, len(files), _PICTURES_AT_ONCE)
    batches = ((encoding.encode(files[start : start + _PICTURES_AT_ONCE]),) for start in starts)
    names = [file.name for file in files]
    return _answers(model, ("file",), [(name,) for name in names], names, batches)


def _of_arrays(model: ExportedModel, given: Path) -> Predictions:
    records = model.about["inputs"]
    names = [record["name"] for record in records]
    if not given.name.lower().endswith(".npz"):
        raise DataError(f"{given} is not an npz file; this model takes the arrays {', '.join(names)} from np.savez")
    arrays = read_arrays(given, names)
    inputs = [tensor_for(record, arrays[record["name"]]) for record in records]
    rows = {len(tensor) for tensor in inputs}
    if len(rows) > 1:
        raise DataError(f"{given.name} has arrays with {sorted(rows)} rows; all need the same number")
    count = len(inputs[0])
    starts = range(0, count, _ROWS_AT_ONCE)
    batches = (tuple(tensor[start : start + _ROWS_AT_ONCE] for tensor in inputs) for start in starts)
    numbers = range(1, count + 1)
    return _answers(model, ("row",), [(n,) for n in numbers], [f"{given.name}, row {n}" for n in numbers], batches)


def _answers(
    model: ExportedModel,
    columns: tuple[str, ...],
    rows: Sequence[tuple[Any, ...]],
    places: Sequence[str],
    batches: Iterator[tuple[Tensor, ...]],
) -> Predictions:
    outputs = torch.cat([model.outputs(*inputs) for inputs in batches]).reshape(len(rows), -1)
    sound = outputs.isfinite().all(1)
    if not bool(sound.all()):
        first = int((~sound).long().argmax())
        raise ModelFolderError(
            f"the model gives no number for {places[first]}; it diverged in training, so do not use it"
        )
    target = model.target
    if not target.classes:
        named = [f"{target.name} {i}" for i in range(outputs.shape[1])] if outputs.shape[1] > 1 else [target.name]
        numbers = (outputs.double() * target.spread + target.mean).tolist()
        return Predictions(
            (*columns, *(f"predicted {name}" for name in named)),
            tuple((*row, *values) for row, values in zip(rows, numbers, strict=True)),
        )
    # By the outputs, as in the run's scores: probabilities may be rounded to the same number.
    predicted = target.predicted_classes(outputs)
    probabilities = outputs.double().softmax(1).tolist()
    return Predictions(
        (*columns, f"predicted {target.name}", *(f"probability of {name}" for name in target.classes)),
        tuple((*row, name, *values) for row, name, values in zip(rows, predicted, probabilities, strict=True)),
    )


def _cell(value: Any) -> Any:
    import pandas as pd

    return "" if pd.isna(value) else value


def check_output(out: Path, new: Path, *, overwrite: bool) -> None:
    """Refuses to replace the table that is predicted for, or any other file without being asked to."""
    if out.exists() and new.exists() and out.samefile(new):
        raise ConfigError(f"--out {out} is the table to predict for; choose another file")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; give the name of a CSV file")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists; replace it with --overwrite, or choose another --out")
