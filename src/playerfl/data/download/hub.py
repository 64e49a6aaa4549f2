"""Copies of datasets on the Hugging Face hub, as parquet files and never as code."""

from __future__ import annotations

from pathlib import Path

from playerfl.data.download.file import UnreachableError
from playerfl.errors import DataError

SPLITS = ("train", "test")


def copy_from_hub(hub: str, folder: Path) -> None:
    """Writes train.parquet and test.parquet of a dataset on the hub into `folder`, each one atomically.

    The hub names no checksum that could be pinned, so unlike a download this trusts it.
    """
    try:
        from datasets import load_dataset
    except ImportError as problem:
        raise DataError(
            "copies on the hub are read with the library 'datasets', which is not installed; "
            "pip install 'playerfl[hub]'"
        ) from problem
    # The parquet reader runs nothing, whatever script a repository holds; the hub keeps a parquet copy in this branch.
    branch = f"hf://datasets/{hub}@refs/convert/parquet"
    try:
        parts = load_dataset("parquet", data_files={split: f"{branch}/*/{split}/*.parquet" for split in SPLITS})
        for split in SPLITS:
            target = folder / f"{split}.parquet"
            part = target.with_name(target.name + ".part")
            try:
                parts[split].to_parquet(str(part))
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
    # The library lets errors of many others through, which share no base class.
    except Exception as problem:
        reason = str(problem).partition("\n")[0] or type(problem).__name__
        raise UnreachableError(f"cannot copy {hub} from the Hugging Face hub ({reason})") from problem
