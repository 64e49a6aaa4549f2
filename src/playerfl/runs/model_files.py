"""Every site's model as files: one for each site, and one for the frozen entries, which are the same at all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from safetensors import SafetensorError
from safetensors.torch import load

from playerfl.errors import RunDirectoryError
from playerfl.storage.atomic_files import RESUME, make_directory, write_atomically
from playerfl.storage.tensor_tree import model_pieces
from playerfl.weights import Weights

FOLDER = "weights"
FROZEN = "frozen.safetensors"
"""Next to the folder, whose files are named after sites."""


def write_models(directory: Path, models: Mapping[str, Weights], frozen: Collection[str]) -> None:
    """Writes the models into a run's directory."""
    folder = directory / FOLDER
    make_directory(folder, RESUME)
    for number, (site, entries) in enumerate(models.items()):
        if frozen and not number:
            write_atomically(directory / FROZEN, model_pieces({name: entries[name] for name in frozen}))
        trained = {name: entry for name, entry in entries.items() if name not in frozen}
        write_atomically(folder / f"{quote(site, safe=' ')}.safetensors", model_pieces(trained))


class ModelFiles(Mapping[str, Weights]):
    """Every site's model by site name, read on demand; the last one stays in memory."""

    def __init__(self, directory: Path) -> None:
        self._files = {unquote(file.stem): file for file in sorted((directory / FOLDER).glob("*.safetensors"))}
        self._frozen = load_weights(directory / FROZEN) if (directory / FROZEN).exists() else {}
        self._last: tuple[str, Weights] = ("", {})

    @property
    def num_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._files.values())

    def __getitem__(self, site: str) -> Weights:
        file = self._files[site]
        if self._last[0] != site:
            self._last = (site, {**self._frozen, **load_weights(file)})
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def load_weights(file: Path) -> Weights:
    """The tensors of a file; RunDirectoryError if it cannot be read."""
    try:
        return load(file.read_bytes())
    except (OSError, SafetensorError) as problem:
        raise RunDirectoryError(f"{file} cannot be read: {problem}") from problem
