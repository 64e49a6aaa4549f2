"""Predictions for new rows or images, and the table they are written to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from playerfl.export.load_model import LARGEST, picture_measures
from playerfl.export.unusual import Unusual, unusual_values
from playerfl.storage.csv_table import csv_text

_ROWS_AT_ONCE = 512
_PICTURES_AT_ONCE = 64


@dataclass(frozen=True)
class Predictions:
    """One row per row or image: where it comes from, then what the model predicts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    warnings: tuple[str, ...] = ()
    """Why some of them should not be relied on, in sentences; the rows say which."""

    def csv(self) -> str:
        """The text of a CSV file, in which no cell is a formula."""
        return csv_text((self.columns, *self.rows))


def predict(folder: Path | str, new: Path | str, *, strict: bool = False) -> Predictions:
    """The predictions of the model in a folder for the rows of a table, or for an image or a folder of images.

    The table or images must be like those the model was trained on; anything else is refused in a sentence that
    names the file, the column and the row. Values far from those of the training rows are marked in the result, or,
    with `strict`, refused too.
    """
    predictions = _predicted(folder, new)
    if strict and predictions.warnings:
        raise DataError(f"{'; '.join(predictions.warnings)}; strict: nothing is predicted")
    return predictions


def _predicted(folder: Path | str, new: Path | str) -> Predictions:
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
    places = [f"{table.file}, row {number}" for number in numbers]
    _check_finite(raw.nan_to_num(nan=0.0).abs() <= LARGEST, places)
    if bool((empty := raw.isnan().all(1)).any()):
        raise DataError(f"{places[int(empty.long().argmax())]}: all values are missing; remove the row")
    # Identifiers that were left out of the training help to match predictions with patients.
    known = [name for name in encoding.ignored if name != model.target.name and name in table.frame.columns]
    before = [[_cell(value) for value in table.frame[name]] for name in known]
    titles = ("row", *(f"{name} (in the table)" if name == "row" else name for name in known))
    batches = ((raw[start : start + _ROWS_AT_ONCE],) for start in range(0, len(raw), _ROWS_AT_ONCE))
    unusual = unusual_values(model, (raw,), places)
    unusual = replace(unusual, warnings=(*_blank_rows(table.file, numbers), *unusual.warnings))
    return _marked(_answers(model, titles, list(zip(numbers, *before, strict=True)), places, batches), unusual)


def _blank_rows(file: str, numbers: Sequence[int]) -> list[str]:
    """A warning if the reader passed over blank rows before the last one."""
    header = 1 if file.lower().endswith((".csv", ".csv.gz")) else 0
    blank = numbers[-1] - header - len(numbers)
    if blank <= 0:
        return []
    first = next(row for row, number in enumerate(numbers, start=1 + header) if row != number)
    counted = "1 row has" if blank == 1 else f"{blank} rows have"
    return [f"{counted} no values (the first is row {first} of {file}), and no prediction"]


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
    names = [file.name for file in files]
    measures: list[Tensor] = []

    def batches() -> Iterator[tuple[Tensor, ...]]:
        for start in range(0, len(files), _PICTURES_AT_ONCE):
            pictures = encoding.encode(files[start : start + _PICTURES_AT_ONCE])
            measures.append(picture_measures(pictures)[0])
            yield (pictures,)

    predictions = _answers(model, ("file",), [(name,) for name in names], names, batches())
    return _marked(predictions, unusual_values(model, (torch.cat(measures),), names))


def _of_arrays(model: ExportedModel, given: Path) -> Predictions:
    records = model.about["inputs"]
    names = [record["name"] for record in records]
    if not given.name.lower().endswith(".npz"):
        raise DataError(f"{given} is not an npz file; this model takes the arrays {', '.join(names)} from np.savez")
    arrays = read_arrays(given, names)
    inputs = [tensor_for(record, arrays[record["name"]]) for record in records]
    lengths = {len(tensor) for tensor in inputs}
    if len(lengths) > 1:
        raise DataError(f"{given.name} has arrays with {sorted(lengths)} rows; all need the same number")
    count = len(inputs[0])
    if not count:
        raise DataError(f"{given.name} has no rows; there is nothing to predict")
    places = [f"{given.name}, row {n}" for n in range(1, count + 1)]
    for tensor in inputs:
        _check_finite(tensor.reshape(count, -1).isfinite(), places)
    starts = range(0, count, _ROWS_AT_ONCE)
    batches = (tuple(tensor[start : start + _ROWS_AT_ONCE] for tensor in inputs) for start in starts)
    rows = [(number,) for number in range(1, count + 1)]
    return _marked(_answers(model, ("row",), rows, places, batches), unusual_values(model, inputs, places))


def _check_finite(is_finite: Tensor, places: Sequence[str]) -> None:
    """`is_finite`: by row and number."""
    bad = ~is_finite.all(1)
    if bool(bad.any()):
        raise DataError(f"{places[int(bad.long().argmax())]}: a value is infinite or not a number; correct it")


def _answers(
    model: ExportedModel,
    columns: tuple[str, ...],
    rows: Sequence[tuple[Any, ...]],
    places: Sequence[str],
    batches: Iterator[tuple[Tensor, ...]],
) -> Predictions:
    """Predictions from batches of inputs; `places`: where each row is, for messages."""
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
        in_units = outputs.double() * target.spread + target.mean
        if not bool(in_units.isfinite().all()):
            raise ModelFolderError(f"the model in {model.path} gives numbers that are not finite; export it again")
        numbers = in_units.tolist()
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


def _marked(predictions: Predictions, unusual: Unusual) -> Predictions:
    """The same predictions, with what is unusual about the rows they are for."""
    marked = tuple((*row, *marks) for row, marks in zip(predictions.rows, unusual.rows, strict=True))
    return Predictions((*predictions.columns, *unusual.columns), marked, unusual.warnings)


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
