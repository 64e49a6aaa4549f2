"""JobFolder: the files of one job at a site, written before a response leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from playerfl.errors import RunDirectoryError
from playerfl.federation.messages import Reply, Upload
from playerfl.flower.site.files.contract import Contract, Decision
from playerfl.flower.site.files.names import CONTRACT, DATA_CHECK, DECISION, RESERVED, STATE
from playerfl.flower.site.files.stored_state import ClientState, StoredState
from playerfl.flower.wire.envelopes import RefusedError
from playerfl.storage import tensor_tree
from playerfl.storage.atomic_files import fsync_dir, temp_path, write_atomically
from playerfl.storage.locking import locked
from playerfl.weights import Weights


@dataclass(frozen=True)
class JobFolder:
    """The folder of a job, which has the job's name."""

    path: Path

    def is_free(self) -> bool:
        """Whether the job may have this folder: nothing is in its place, or a job of this name."""
        if self.path.name.lower() in RESERVED:
            return False
        if not self.path.is_dir():
            return not self.path.exists() and not self.path.is_symlink()
        # A job that was killed while it began has no contract yet.
        known = [self.path / name for name in (CONTRACT, DECISION, STATE, DATA_CHECK)]
        begun = {*known, *map(temp_path, known)}
        return any(file.exists() for file in known) or begun.issuperset(self.path.iterdir())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time: after a restart, the previous process may still be writing."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise RefusedError("storage", f"{self.path}: {problem}") from problem
        with locked(self.path, wait=True):
            try:
                yield
            except Exception:
                # A job that was never agreed to leaves nothing behind.
                with suppress(OSError):
                    self.path.rmdir()
                raise

    def contract(self) -> Contract | None:
        return Contract.read(self.path)

    def decision(self) -> Decision | None:
        return Decision.read(self.path)

    def state(self) -> StoredState | None:
        """The last response and the states up to it, whose tensors stay in the file; None before the first one."""
        file = self.path / STATE
        if not file.exists():
            return None
        try:
            return StoredState.from_tree(tensor_tree.look_into(file))
        except RunDirectoryError as problem:
            raise RefusedError("state_lost", str(problem)) from problem

    def store(self, experiment: str, contract: Contract, state: StoredState, model: Weights | None) -> None:
        """Writes everything that the site must remember of a response; `model`: the finished one, if this is it."""
        if model is not None:
            write_atomically(self.path / "model.safetensors", tensor_tree.model_pieces(model))
        write_atomically(self.path / "experiment.toml", experiment.encode())
        contract.write(self.path)
        write_atomically(self.path / STATE, tensor_tree.pieces(state.to_tree()))
        fsync_dir(self.path)

    def adopt(self, key: str, state: ClientState) -> None:
        """Stores a state that was computed elsewhere as the client's state after the response `key`."""
        self.path.mkdir(parents=True, exist_ok=True)
        adopted = StoredState((), key, "", state, Reply(Upload(0)))
        write_atomically(self.path / STATE, tensor_tree.encode(adopted.to_tree()))
