"""A model of 100 million parameters at 10 sites: peak memory against its bound, in one process, at a server, at a site.

    python reliability/large_model.py [--sites 10] [--width 4096] [--rounds 2] [--only process,server,site]

FedAvg in float32, one thread, with a run directory and checkpoints. Memory is counted in models (M = 4 bytes per
parameter), beyond what the process holds before the model is built. The exit status is 1 if a peak exceeds its bound.

process      All sites in this process, AdamW with its state reset each round, so only the active site has one. Bound:
               4 M   the scratch model, its gradients, the common model, the initial model
               2 M   the optimiser of the site that trains
               1 M   the aggregation buffer: one upload on its way to disk, or the new common model while it is computed
             0.5 M   entries being read and summed in float64
             Holding all uploads until the merge would need another M for every site but one. With persistent
             optimiser state (the default) every site keeps another 2 M.
server       The server of a job over Flower. Sites are other processes, which respond with synthetic uploads, since
             only the server is measured; messages come one by one from files instead of a SuperLink. Bound:
               2 M   the common model, the initial model
               4 M   one message: its bytes as received and as Flower's objects, and the decoded upload; or the same for
                     an envelope that is sent
               1 M   the aggregation buffer, as above
             0.5 M   as above
site         The agent of a site over Flower, with AdamW whose state is kept (the default). Its node is another process,
             and the server is played by it. Bound:
               3 M   the scratch model, its gradients, the initial model
               2 M   the optimiser
               3 M   the download, the model that is kept, the trained model, which is the upload
             0.5 M   entries being read and written
             The states of earlier rounds stay in their file.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import playerfl
from flower.jobs import Job
from flower.loop_grid import LoopGrid, put_together, taken_apart
from killing import ended, forked
from playerfl.federation.messages import Download, Reply, Request, Score, Upload
from playerfl.flower.node.connection import ask_agent
from playerfl.flower.server.job import Job as ServerJob
from playerfl.flower.site.files.names import STATE
from playerfl.flower.site.process.listen import listening
from playerfl.flower.site.process.memory import use_one_arena
from playerfl.flower.site.site import Site
from playerfl.flower.wire.codec import decode_envelope, decode_response, encode_response, envelope_parcel
from playerfl.flower.wire.envelopes import Response
from playerfl.seeding import generator_for
from playerfl.studies.backends.memory import peak, resident
from playerfl.tasks.task import Task
from promises import alone, line

FEATURES, CLASSES, HIDDEN = 64, 10, 6
BOUNDS = {"process": 7.5, "server": 7.5, "site": 8.5}
SITE = "site-00"
SETTINGS = {"training.optimizer_state": "reset", "training.batch_size": 32, "data.accept_small_sites": True}


def wide(width: int) -> nn.Module:
    """An MLP with HIDDEN square layers."""
    square = [part for _ in range(HIDDEN) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), *square, nn.Linear(width, CLASSES))


def size_of(width: int) -> int:
    """Bytes of the parameters of a model of this width."""
    with torch.device("meta"):
        return sum(parameter.nbytes for parameter in wide(width).parameters())


def task(sites: int, width: int) -> Task:
    def made_up(site: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(40, FEATURES, generator=generator_for(site, "inputs"))
        return inputs, inputs[:, :CLASSES].argmax(1)

    return playerfl.own_task(partial(wide, width), {f"site-{i:02}": made_up(i) for i in range(sites)})


def in_process(sites: int, width: int, rounds: int) -> dict[str, Any]:
    # A first run, so that everything that is loaded only once is in memory.
    playerfl.run(task(sites, 8), "fedavg", rounds=1, settings=SETTINGS)
    before, peaks = resident(), []
    with tempfile.TemporaryDirectory() as folder:
        result = playerfl.run(
            task(sites, width),
            "fedavg",
            rounds=rounds,
            settings=SETTINGS,
            out=Path(folder) / "run",
            listener=lambda _: peaks.append(peak() - before),
        )
        losses = [row[5] for row in result.score_rows if row[3:5] == ("train", "loss")]
        mean = [sum(some) / sites for some in (losses[:sites], losses[-sites:])]
    return {
        "before": before,
        "peak": peaks[-1],
        "peak until every site's model is written and checked": peak() - before,
        "learned": f"mean training loss {mean[0]:.3f} in the first round, {mean[1]:.3f} in the last",
    }


class FileGrid(LoopGrid):
    """Responses are computed in other processes and wait in files, as they would at a SuperLink."""

    def __init__(self, sites: Iterable[str], respond: Callable[[str, Message], Message], folder: Path) -> None:
        super().__init__(dict.fromkeys(sites))  # type: ignore[arg-type]
        self.respond = respond
        self.folder = folder
        self.most_waiting = 0

    def _push(self, message: Message) -> str:
        name = next(n for n, number in self.numbers.items() if number == message.metadata.dst_node_id)
        number = message.object_id
        message.metadata.__dict__["_message_id"] = number

        def work() -> int:
            (self.folder / number).write_bytes(pickle.dumps(taken_apart(self.respond(name, message)), protocol=5))
            return 0

        code = ended(forked(work))
        assert code == 0, f"{name} ended with {code}"
        self.most_waiting = max(self.most_waiting, sum(file.stat().st_size for file in self.folder.iterdir()))
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        arrived = []
        for file in (self.folder / number for number in message_ids):
            if file.exists():
                arrived.append(put_together(*pickle.loads(file.read_bytes())))
                file.unlink()
        return arrived


def made_up_response(job: Job, name: str, message: Message) -> Message:
    """Says hello as any site does, and uploads the initial model moved a little."""
    envelope = decode_envelope(message.content)
    site: Site = job.sites[name]
    if envelope.request is None:
        return Message(encode_response(site.respond(envelope)), reply_to=message)
    setup = site.find_setup(job.experiment, name).setup
    examples, round_ = len(setup.sites[name].train), envelope.request.download.round
    weights, scores = {}, []
    if "fit" in envelope.request.verbs:
        generator = generator_for(round_, name)
        move = torch.rand((), generator=generator) / 1000
        weights = {entry: tensor + move for entry, tensor in setup.initial.items()}
        scores = [Score("round", round_ + 1, "train", "loss", float(move))]
    if "evaluate" in envelope.request.verbs:
        scores += [Score("round", round_, split, "loss", 1.0) for split in ("validation", "test")]
    return Message(
        encode_response(Response(name, envelope.key, Reply(Upload(examples, weights), tuple(scores)))), reply_to=message
    )


def at_server(sites: int, width: int, rounds: int) -> dict[str, Any]:
    names = tuple(f"site-{i:02}" for i in range(sites))

    def job_of(folder: Path, wide: int) -> tuple[Job, FileGrid]:
        job = Job(folder / "home", "fedavg", task(sites, wide), rounds, names, **SETTINGS)
        (folder / "messages").mkdir()
        job.grid = FileGrid(names, partial(made_up_response, job), folder / "messages")
        job.run(deadline=1e6)
        return job, job.grid

    with tempfile.TemporaryDirectory() as folder:
        job_of(Path(folder), 8)
    before = resident()
    with tempfile.TemporaryDirectory() as folder:
        _, grid = job_of(Path(folder), width)
        return {"before": before, "peak": peak() - before, "waiting": grid.most_waiting}


def ask(socket: Path, job: Job, key: str, after: str) -> int:
    """What a node does with an envelope of the server's, in a process of its own."""
    start = ServerJob.of(job.deployment, job.task)
    verbs = tuple(key.partition(":")[2].split("+")) if ":" in key else ()
    round_ = int(key.partition(":")[0]) if verbs else 0
    move = torch.rand((), generator=generator_for(round_, "move")) / 1000
    weights = {entry: tensor + move for entry, tensor in start.initial.items()} if round_ else start.initial
    request = Request(verbs, Download(round_, weights)) if verbs else None  # type: ignore[arg-type]
    envelope = replace(start.header, site=SITE, request=request, after=after, initial=bool(verbs) and not round_)
    response = decode_response(ask_agent(str(socket), envelope_parcel(envelope)))
    return 0 if response.code is None and response.key == key else 1


def at_site(_: int, width: int, rounds: int) -> dict[str, Any]:
    keys = ["hello", "0:fit", *(f"{done}:evaluate+fit" for done in range(1, rounds)), f"{rounds}:evaluate+finish"]

    def answered(folder: Path, wide: int) -> None:
        settings = {**SETTINGS, "training.optimizer_state": "persistent"}
        job = Job(folder / "home", "fedavg", task(1, wide), rounds, (SITE,), **settings)
        socket = folder / "agent.sock"
        with listening(socket, job.agent(SITE).answer):
            for after, key in zip(["", "", *keys[1:]], keys, strict=False):
                assert ended(forked(partial(ask, socket, job, key, after))) == 0, key

    use_one_arena()
    with tempfile.TemporaryDirectory() as folder:
        answered(Path(folder), 8)
    before = resident()
    with tempfile.TemporaryDirectory() as folder:
        answered(Path(folder), width)
        state = (Path(folder) / "home" / SITE / "job" / STATE).stat().st_size
        return {"before": before, "peak": peak() - before, "its state file": state}


PARTS: dict[str, Callable[[int, int, int], dict[str, Any]]] = {
    "process": in_process,
    "server": at_server,
    "site": at_site,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default=",".join(PARTS), help=f"any of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    model = size_of(arguments.width)
    print(f"{model / 4e6:.1f} million parameters (M = {model / 1e9:.2f} GB), {arguments.sites} sites")
    held = True
    for part in arguments.only.split(","):
        since = time.monotonic()
        measured = alone(PARTS[part], arguments.sites, arguments.width, arguments.rounds)
        print(f"\n{part}: {arguments.rounds} rounds, {time.monotonic() - since:.0f} s")
        line("memory before the model is built", f"{measured.pop('before') / 1e9:.2f} GB")
        most = measured.pop("peak")
        shown = f"{most / 1e9:.2f} GB, {most / model:.2f} M"
        held &= line(f"peak of the rounds beyond that (bound: {BOUNDS[part]} M)", shown, most <= BOUNDS[part] * model)
        if part != "site":
            line("bound if all uploads were held until the merge", f"{BOUNDS[part] + arguments.sites - 1:.1f} M")
        for what, value in measured.items():
            line(what, value if isinstance(value, str) else f"{value / 1e9:.2f} GB, {value / model:.2f} M")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
