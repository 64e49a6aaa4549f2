"""`playerfl predict`: predictions for new rows or images from an exported model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from playerfl.cli.options import examples
from playerfl.errors import PlayerflError
from playerfl.wording import counted

PREDICT_EXAMPLES = examples(
    "predict models/north new.csv --out predictions.csv",
    "predict models/skin ./pictures --out predictions.csv",
)


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL")],
    new: Annotated[Path, typer.Argument(metavar="NEW")],
    out: Annotated[Path | None, typer.Option(help="The CSV file to write (default: stdout).")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse rows with values outside the training range.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file --out.")] = False,
) -> None:
    """Predict for new rows or images with an exported model.

    MODEL is a folder from `playerfl export`. NEW is a table with the columns of the training data, an image or a folder
    of images, or an npz file for a model that takes tensors. Every class gets a probability; a number is in the
    target's own units. Rows with values outside the training range are marked, and a warning counts them.
    """
    from playerfl.export.predict import check_output
    from playerfl.export.predict import predict as predictions_for
    from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically

    if out is not None:
        check_output(out, new, overwrite=overwrite)
    predictions = predictions_for(model, new, strict=strict)
    for warning in predictions.warnings:
        # Names come from files: as an error, the sentence is one line that a terminal can show.
        print(f"warning: {PlayerflError(warning)}", file=sys.stderr, flush=True)
    if out is None:
        print(predictions.csv(), end="")
        return
    make_directory(out.parent)
    write_atomically(out, predictions.csv().encode(), RERUN_HINT)
    rows = len(predictions.rows)
    print(f"predictions for {counted(rows, 'row')}: {out}", file=sys.stderr, flush=True)
