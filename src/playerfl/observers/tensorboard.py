"""TensorBoardObserver: a run's scores in TensorBoard while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from playerfl.errors import ConfigError
from playerfl.observers.readings import hyper_parameters, profile_figure, run_name, scalars
from playerfl.runs.run import Progress
from playerfl.storage.atomic_files import storage_error

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardObserver:
    """Pass it as `listener=` to `playerfl.run`; view it with `tensorboard --logdir DIR`.

    Writes every site's scores and their average per round, the settings, and a figure of the layer profile. Each run
    has its own folder in `directory`, named after task, algorithm and seed.
    """

    def __init__(self, directory: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as problem:
            raise ConfigError("TensorBoard is not installed; pip install 'playerfl[tensorboard]'") from problem
        self._open = SummaryWriter
        self._directory = Path(directory)
        self._writers: dict[str, SummaryWriter] = {}
        self._drawn: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        try:
            self._show(progress)
        except OSError as problem:
            raise storage_error(self._directory, problem) from problem

    def _show(self, progress: Progress) -> None:
        name = run_name(progress)
        if name not in self._writers:
            writer = self._open(str(self._directory / name))
            settings = hyper_parameters(progress)
            rows = "\n".join(f"| {key} | {value} |" for key, value in settings.items())
            writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")
            self._writers[name] = writer
        writer = self._writers[name]
        for tag, value, round_ in scalars(progress):
            writer.add_scalar(tag, value, round_)
        if name not in self._drawn and (figure := profile_figure(progress)) is not None:
            writer.add_figure("layer profile", figure, progress.round)
            self._drawn.add(name)
        writer.flush()
        if progress.done:
            self._writers.pop(name).close()
