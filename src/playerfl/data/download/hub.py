"""Copies datasets from the Hugging Face Hub, as parquet files, never as code."""

from __future__ import annotations

from pathlib import Path

from playerfl.data.download.file import UnreachableError
from playerfl.errors import DataError

SPLITS = ("train", "test")


def copy_from_hub(hub: str, folder: Path) -> None:
    """Writes train.parquet and test.parquet of a dataset on the hub into `folder`, each one atomically.

    The hub offers no checksum to pin, so unlike a download, its content is trusted.
    """
    try:
        from datasets import load_dataset
    except ImportError as problem:
        raise DataError("copying from the hub needs the library datasets; pip install 'playerfl[hub]'") from problem
    # The parquet reader runs no code from the repository; the hub keeps a parquet copy in this branch.
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
    # The library passes on errors from many other libraries, without a common base class.
    except Exception as problem:
        reason = str(problem).partition("\n")[0] or type(problem).__name__
        raise UnreachableError(f"cannot copy {hub} from the Hugging Face Hub ({reason})") from problem
