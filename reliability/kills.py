"""Crash consistency: runs, studies and Flower sites are killed (SIGKILL) at random moments and resumed.

    python reliability/kills.py [--kills 200] [--seed 0] [--only run,study,site] [--privacy none,noise,secure]

Kills are spread evenly over the time the undisturbed work takes. Each is followed by the command that resumes the work:
`playerfl run --resume`, the same `playerfl study`, or the same message to a new process of the site. In the end all
files, except those that record times, are compared byte for byte with those of the undisturbed work. The exit status is
1 if anything differs.

  run    `playerfl run` with a run directory, of one algorithm or two side by side (RUNS, in turn), 1 to 3 kills each
  study  `playerfl study` of 6 runs and 8 tuning runs with a checkpoint after every round, in one process and on workers
         in turn, 1 to 3 kills each. Only the command is killed; its workers notice and exit
  site   a job of three sites over Flower's messages (JOBS, in turn). Server and transport are those of a deployment;
         each response is made in a new process that has only the site's directory. Half of the responses are killed,
         some again when the message is repeated. tests/flower/operate kills SuperLink, SuperNode and server.
         --privacy: without options, with clipping and noise (which a site derives from a secret, so that it is the same
         after a kill), and by SecAgg+, also killed between its stages. SecAgg+ rounds at random, so its results are
         compared to within 0.001
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower.jobs import Job
from flower.killed_sites import MortalSites
from killing import command, contents, kill_and_resume, run_or_resume, undisturbed
from playerfl.flower.site.files.names import OWN
from playerfl.flower.wire.envelopes import Privacy
from studies.small_studies import SMALL, written

PRIVACY = {
    "none": Privacy(),
    "noise": Privacy(clip=1.0, noise=0.5, sensitivity_noise=0.1),
    "secure": Privacy(secure_range=8.0),
}
ROUNDING = 1e-3
"""How far the weights of two jobs by SecAgg+ may be apart: each of three rounds rounds to about 1e-5, and trains on."""
RUNS = (("local", "player_fl"), ("ditto",), ("fedlama",), ("pfedla",), ("fedbabu",), ("pfedme",))
STUDIED = ("local", "player_fl")
JOBS = ("player_fl", "ditto", "fedbabu")
SECURE_JOBS = ("player_fl", "fedbabu", "fedavg")
"""Those whose server needs only the mean of the uploads."""
SHARES = {"run": 0.4, "study": 0.2, "site": 0.4}
"""How the kills are divided between the kinds."""

Command = Callable[[Path], list[str]]
"""What starts work in a folder, or resumes it."""
Trial = tuple[int, list[str]]
"""The number of kills, and the files that differ from those of undisturbed work."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(SHARES), help=f"any of {', '.join(SHARES)}")
    parser.add_argument("--privacy", default=",".join(PRIVACY), help=f"of the sites' jobs, any of {', '.join(PRIVACY)}")
    arguments = parser.parse_args()
    kinds = arguments.only.split(",")
    KINDS["site"] = partial(sites, privacy=arguments.privacy.split(","))
    torch.set_num_threads(1)
    differ = 0
    for kind, wanted in shared_out(arguments.kills, kinds).items():
        with tempfile.TemporaryDirectory() as folder:
            differ += killed(kind, wanted, random.Random(f"{arguments.seed} {kind}"), Path(folder))
    sys.exit(1 if differ else 0)


def shared_out(kills: int, kinds: list[str]) -> dict[str, int]:
    """How many kills each kind gets; the last kind gets the remainder."""
    whole = sum(SHARES[kind] for kind in kinds)
    shares = {kind: round(kills * SHARES[kind] / whole) for kind in kinds[:-1]}
    return {**shares, kinds[-1]: kills - sum(shares.values())}


def killed(kind: str, wanted: int, rng: random.Random, folder: Path) -> int:
    """Makes `wanted` kills of one kind; returns how many of them left different files."""
    since = time.monotonic()
    trials = equal = done = 0
    for kills, differ in KINDS[kind](folder, wanted, rng):
        trials += 1
        done += kills
        equal += 0 if differ else kills
        if differ:
            print(f"\r{kind}, trial {trials}: {', '.join(differ)}", file=sys.stderr)
        if sys.stderr.isatty():
            print(f"\r{kind}: {done} of {wanted}", end="", file=sys.stderr)
        if done >= wanted:
            break
    seconds = time.monotonic() - since
    print(
        f"\r{kind:<6} {equal:>3} of {done:>3} kills end with the same bytes  ({trials} trials, {seconds:.0f} s)",
        flush=True,
    )
    return done - equal


def differing(broken: Path, whole: Path) -> list[str]:
    actual, expected = contents(broken), contents(whole)
    return sorted(name for name in actual.keys() | expected.keys() if actual.get(name) != expected.get(name))


def runs(folder: Path, wanted: int, rng: random.Random) -> Iterator[Trial]:
    def of(names: tuple[str, ...]) -> Command:
        options = [option for name in names for option in ("-a", name)]
        run = ["run", "synthetic", *options, "--rounds", "15", "-q"]
        return lambda out: run_or_resume(run, out)

    return commands([of(names) for names in RUNS], folder, wanted, rng)


def studies(folder: Path, wanted: int, rng: random.Random) -> Iterator[Trial]:
    settings = {**SMALL["settings"], "rounds": 10}
    file = written(folder, {**SMALL, "algorithms": STUDIED, "checkpoint_seconds": 0, "settings": settings})

    def on(backend: str) -> Command:
        return lambda out: ["study", str(file), "-q", "--out", str(out), "--backend", backend]

    return commands([on("serial"), on("processes")], folder, wanted, rng)


def commands(works: Sequence[Command], folder: Path, wanted: int, rng: random.Random) -> Iterator[Trial]:
    """Starts, kills and resumes these commands in turn."""
    whole = [folder / f"whole-{i}" for i in range(len(works))]
    # Once in this process, so that its forks need not import anything.
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        assert command(works[0](folder / "warm")) == 0
    seconds = [undisturbed(work(out)) for work, out in zip(works, whole, strict=True)]
    for trial in count():
        which = trial % len(works)
        broken = folder / f"broken-{trial}"
        kills = kill_and_resume(partial(works[which], broken), seconds[which], min(rng.randint(1, 3), wanted), rng)
        wanted -= kills
        yield kills, differing(broken, whole[which])


def sites(folder: Path, wanted: int, rng: random.Random, privacy: Sequence[str] = tuple(PRIVACY)) -> Iterator[Trial]:
    jobs = [(name, how) for how in privacy for name in (SECURE_JOBS if how == "secure" else JOBS)]
    whole = [MortalSites(job_of(folder / f"whole-{name}-{how}", name, how)) for name, how in jobs]
    for (_, how), undisturbed_sites in zip(jobs, whole, strict=True):
        undisturbed_sites.run()
        if how == "none":
            undisturbed_sites.job.assert_equals_in_process()
    for trial in count():
        # The options in turn, so that few kills reach all of them.
        which = (trial * len(JOBS) + trial // len(privacy)) % len(jobs)
        (name, how), model = jobs[which], whole[which]
        broken = MortalSites(job_of(folder / f"broken-{trial}", name, how), rng, min(wanted, 10), model.seconds)
        broken.run()
        wanted -= broken.kills
        far = rounded_differently if how == "secure" else differing
        yield broken.kills, [f"{name}, {how}: {file}" for file in far(broken.job.home, model.job.home)]


def job_of(home: Path, name: str, how: str) -> Job:
    job = Job(home, name)
    job.deployment = replace(job.deployment, privacy=PRIVACY[how])
    for site in job.sites:
        # What a site's noise is derived from; otherwise every site makes a secret of its own.
        (home / site / OWN).mkdir(parents=True)
        (home / site / OWN / "noise.key").write_bytes(site.encode().ljust(32, b"."))
    return job


def rounded_differently(broken: Path, whole: Path) -> list[str]:
    """The files that hold other weights than rounding explains."""
    far = []
    for file in sorted(whole.rglob("*.safetensors")):
        if file.name in ("common.safetensors", "model.safetensors") and far_apart(
            file, broken / file.relative_to(whole)
        ):
            far.append(str(file.relative_to(whole)))
    return far


def far_apart(one: Path, other: Path) -> bool:
    """Whether two files hold other weights than rounding explains."""
    expected, actual = load_file(one), load_file(other)
    return any(float((expected[name] - actual[name]).abs().max()) > ROUNDING for name in expected)


KINDS: dict[str, Callable[[Path, int, random.Random], Iterator[Trial]]] = {
    "run": runs,
    "study": studies,
    "site": sites,
}


if __name__ == "__main__":
    main()
