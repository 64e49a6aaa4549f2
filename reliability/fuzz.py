"""Hostile input: every reader reads many broken files. What it does not accept, it must refuse in one sentence.

    python reliability/fuzz.py --inputs 100000 --save findings
    python reliability/fuzz.py --only "checkpoint file" --inputs 20000 --guided

Anything but an error of `playerfl.errors` is a finding, and its input is saved: another exception, a crash of the
interpreter, too much time or memory, a new process or connection, an unpickled object, a file written elsewhere.
`--guided` lets atheris (pip install atheris) choose inputs by the lines of the package they reach.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

if "--guided" in sys.argv:
    import atheris

    # Before the first import of the package, and for everything that readers import later.
    atheris.instrument_imports(include=["playerfl"]).__enter__()

sys.path.insert(0, str(Path(__file__).with_name("fuzzing")))

from mutation import Breaker
from playerfl.errors import PlayerflError
from reader import NotAnInput, Reader
from readers import READERS

SECONDS = 5.0
"""An input that takes longer counts as a hang."""
BYTES = 2**30
"""The memory limit, for an input of at most a MiB."""
_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "socket.connect",
    "pickle.find_class",
)
_LONGEST_SENTENCE = 4000


class Alarm(BaseException):
    """Not an Exception, so that no reader mistakes it for a problem with its input."""


@dataclass
class Outcome:
    """What happened to one reader's inputs."""

    reader: str
    inputs: int = 0
    refused: int = 0
    accepted: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    """The number of inputs that led to each."""
    seconds: float = 0.0
    growth: float = 0.0
    """How much the peak memory has grown since before the first input, in MiB."""

    def __str__(self) -> str:
        rate = self.inputs / self.seconds if self.seconds else 0.0
        return (
            f"{self.reader:<36}{self.inputs:>8} inputs {self.refused:>8} refused {self.accepted:>7} accepted "
            f"{len(self.findings):>3} findings {rate:>7.0f}/s {self.growth:>6.0f} MiB"
        )


class Field:
    """A reader with its valid example, and a copy whose files are broken."""

    def __init__(self, reader: Reader, home: Path, save: Path | None = None) -> None:
        self.reader = reader
        self.whole, self.broken = home / "whole", home / "broken"
        self.save = save
        self.outcome = Outcome(reader.name)
        self._watch = _Watch(home)
        self.whole.mkdir(parents=True)
        with quiet():
            reader.example(self.whole)
        self._renew()
        self.files = [
            str(file.relative_to(self.whole))
            for file in sorted(self.whole.rglob("*"))
            if file.is_file() and not any(skipped in str(file.relative_to(self.whole)) for skipped in reader.skips)
        ]
        self._contents = {name: (self.whole / name).read_bytes() for name in self.files}
        # A reader that refuses the valid example would refuse everything, and prove nothing.
        with quiet():
            reader.read(self.broken)
        self._renew()

    def _renew(self) -> None:
        shutil.rmtree(self.broken, ignore_errors=True)
        shutil.copytree(self.whole, self.broken)

    def random_input(self, random: Random) -> dict[str, bytes | None]:
        """New contents for some files; None for a missing file."""
        chosen = random.sample(self.files, min(len(self.files), 2 if random.random() < 0.1 else 1))
        if random.random() < 0.005:
            return dict.fromkeys(chosen)
        breaker = Breaker(random)
        return {name: breaker.broken(self._contents[name], name) for name in chosen}

    def try_input(self, changes: dict[str, bytes | None]) -> None:
        """Reads the example with these changes, and counts what happened."""
        for name, content in changes.items():
            (self.broken / name).unlink() if content is None else (self.broken / name).write_bytes(content)
        self.reader.repair(self.broken)
        finding = None
        try:
            with quiet(), self._watch:
                self.reader.read(self.broken)
            self.outcome.accepted += 1
        except NotAnInput:
            self.outcome.inputs -= 1
        except PlayerflError as problem:
            finding = _unclear(problem)
            self.outcome.refused += finding is None
        except (Exception, Alarm) as problem:
            finding = f"{_where(problem)} {type(problem).__name__}"
        self.outcome.inputs += 1
        if finding := finding or self._watch.seen:
            if finding not in self.outcome.findings:
                self._save(finding)
            self.outcome.findings[finding] = self.outcome.findings.get(finding, 0) + 1
        if self.reader.writes:
            self._renew()
        else:
            for name in {*changes, *self.reader.repairs}:
                (self.broken / name).write_bytes(self._contents[name])

    def _save(self, finding: str) -> None:
        if self.save is None:
            return
        place = self.save / self.reader.name.replace("/", " ") / f"{len(self.outcome.findings)}"
        shutil.copytree(self.broken, place / "input", dirs_exist_ok=True)
        (place / "finding.txt").write_text(finding + "\n", encoding="utf-8", errors="backslashreplace")

    def run(self, inputs: int, seed: int, seconds: float | None = None) -> Outcome:
        """This many inputs, or as many as `seconds` of CPU time allow, but at least one."""
        before = _resident()
        start, cpu = time.perf_counter(), time.process_time()
        number = 0
        while self.outcome.inputs < inputs:
            if seconds is not None and self.outcome.inputs and time.process_time() - cpu > seconds:
                break
            number += 1
            self.try_input(self.random_input(Random(f"{seed}/{self.reader.name}/{number}")))
        self.outcome.seconds = time.perf_counter() - start
        self.outcome.growth = max(0.0, _resident() - before)
        return self.outcome


class _Watch:
    """While active: an alarm for hangs, and a watch on what no reader may do."""

    _active: _Watch | None = None
    _installed = False

    def __init__(self, home: Path) -> None:
        self.home = str(home.resolve())
        self.seen: str | None = None
        if not _Watch._installed:
            # An audit hook cannot be removed; it does nothing unless a watch is active.
            sys.addaudithook(_Watch._audit)
            _Watch._installed = True

    def __enter__(self) -> None:
        self.seen = None
        _Watch._active = self
        self._before = signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        _Watch._active = None

    def _ring(self, *_: object) -> None:
        raise Alarm(f"more than {SECONDS:g} seconds")

    @staticmethod
    def _audit(event: str, arguments: tuple[Any, ...]) -> None:
        watch = _Watch._active
        if watch is None:
            return
        if event.startswith(_FORBIDDEN):
            watch.seen = f"{event} {str(arguments)[:100]}"
        elif event == "open" and isinstance(arguments[0], str | bytes) and isinstance(arguments[2], int):
            place = os.path.realpath(os.fsdecode(arguments[0]))
            writing = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writing and not place.startswith((watch.home, "/dev/", "/proc/")):
                watch.seen = f"writes {place}"


def _unclear(problem: PlayerflError) -> str | None:
    sentence = str(problem)
    if len(sentence.splitlines()) > 1:
        return f"{_where(problem)} a refusal with several lines: {sentence[:200]!r}"
    return f"{_where(problem)} a refusal with {len(sentence)} characters" if len(sentence) > _LONGEST_SENTENCE else None


def _where(problem: BaseException) -> str:
    """The line of the package closest to where the error was raised."""
    frames = traceback.extract_tb(problem.__traceback__)
    last = ([frame for frame in frames if "playerfl" in Path(frame.filename).parts] or list(frames))[-1]
    return f"{'/'.join(Path(last.filename).parts[-2:])}:{last.lineno}"


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings and messages."""
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _in_memory() -> str | None:
    """A directory in memory, for files that are written a thousand times per second."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_process(reader: Reader, work: Callable[[Field], object], save: Path | None, limit: float) -> Outcome:
    """Runs a reader in a separate process with bounded memory, so that a crash is a finding too."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_in_memory()) as home:
        file = Path(home) / "outcome.json"

        def child() -> None:
            field = Field(reader, Path(home) / "field", save)
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + BYTES, mapped + BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            work(field)
            file.write_text(json.dumps(asdict(field.outcome)))

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(limit)
        if process.is_alive():
            process.kill()
            process.join()
        if file.exists():
            return Outcome(**json.loads(file.read_text()))
        why = f"the process ended with {process.exitcode} (its last input is saved)"
        if save is not None:
            shutil.copytree(Path(home) / "field", save / reader.name.replace("/", " ") / "crash", dirs_exist_ok=True)
        return Outcome(reader.name, findings={why: 1})


def guided(inputs: int, report: Callable[[Outcome], object]) -> Callable[[Field], None]:
    """Guided by coverage: libFuzzer keeps inputs that reach new lines and mutates them further."""

    def work(field: Field) -> None:
        import atheris

        before, start = _resident(), time.perf_counter()

        def split(data: bytes) -> tuple[str, bytes]:
            return field.files[(data[0] if data else 0) % len(field.files)], data[1:]

        def change(data: bytes, most: int, seed: int) -> bytes:
            name, content = split(data)
            random = Random(seed)
            if not content or random.random() < 0.05:
                number = random.randrange(min(len(field.files), 256))
                return bytes([number]) + (field.whole / field.files[number]).read_bytes()
            return data[:1] + Breaker(random).broken(content, name)[: most - 1]

        def one(data: bytes) -> None:
            field.try_input(dict([split(data)]))
            if field.outcome.inputs >= inputs:
                field.outcome.seconds = time.perf_counter() - start
                field.outcome.growth = max(0.0, _resident() - before)
                report(field.outcome)
                os._exit(0)

        arguments = [sys.argv[0], "-runs=-1", f"-max_len={2**18}", "-verbosity=0", "-timeout=600", "-rss_limit_mb=0"]
        atheris.Setup(arguments, one, custom_mutator=change)
        atheris.Fuzz()

    return work


def shares(readers: Sequence[Reader], inputs: int) -> dict[str, int]:
    """How many of the inputs each reader gets."""
    whole = sum(reader.weight for reader in readers)
    return {reader.name: math.ceil(inputs * reader.weight / whole) for reader in readers}


def main() -> int:
    parser = argparse.ArgumentParser(description="Every reader over many broken files; one line per reader.")
    parser.add_argument("--inputs", type=int, default=100_000, help="total; slow readers get fewer (default: 100,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this reader; repeat for more")
    parser.add_argument("--save", type=Path, metavar="DIR", help="save the inputs of findings here")
    parser.add_argument("--guided", action="store_true", help="guided by coverage, with atheris")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also append one JSON line per reader to FILE")
    given = parser.parse_args()
    chosen = [reader for reader in READERS if not given.only or reader.name in given.only]
    if not chosen:
        parser.error(f"no such reader; choose from {', '.join(reader.name for reader in READERS)}")
    outcomes = []
    for reader in chosen:
        inputs = shares(chosen, given.inputs)[reader.name]
        outcome = _measured(reader, inputs, given)
        outcomes.append(outcome)
        print(outcome, flush=True)
        for finding, count in outcome.findings.items():
            print(f"    {count} x {finding}", flush=True)
        if given.json:
            with given.json.open("a") as table:
                table.write(json.dumps(asdict(outcome)) + "\n")
    print(f"{sum(o.inputs for o in outcomes)} inputs, {sum(len(o.findings) for o in outcomes)} findings")
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def _measured(reader: Reader, inputs: int, given: argparse.Namespace) -> Outcome:
    limit = 120 + inputs * 0.5
    if not given.guided:
        return in_a_process(reader, lambda field: field.run(inputs, given.seed), given.save, limit)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as home:
        file = Path(home) / "outcome.json"
        outcome = in_a_process(
            reader, guided(inputs, lambda outcome: file.write_text(json.dumps(asdict(outcome)))), given.save, limit
        )
        return Outcome(**json.loads(file.read_text())) if file.exists() else outcome


if __name__ == "__main__":
    sys.exit(main())
