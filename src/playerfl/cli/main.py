"""The entry point: results go to stdout, everything else to stderr; bad input ends in one sentence and exit code 2."""

from __future__ import annotations

import errno
import inspect
import io
import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from playerfl.cli.data import data_app
from playerfl.cli.flower import flower_app
from playerfl.cli.layers import LAYERS_EXAMPLES, layers
from playerfl.cli.models.export import EXPORT_EXAMPLES, export
from playerfl.cli.models.predict import PREDICT_EXAMPLES, predict
from playerfl.cli.options import Json, Quiet, examples
from playerfl.cli.probe import PROBE_EXAMPLES, probe
from playerfl.cli.report import REPORT_EXAMPLES, report
from playerfl.cli.research.analyze import ANALYZE_EXAMPLES, analyze
from playerfl.cli.research.multiverse import MULTIVERSE_EXAMPLES, multiverse
from playerfl.cli.research.thresholds import paper_app
from playerfl.cli.run import RUN_EXAMPLES, run
from playerfl.cli.study import STUDY_EXAMPLES, study
from playerfl.cli.watch import WATCH_EXAMPLES, watch
from playerfl.errors import ConfigError, PlayerflError, one_of, sentence_of, users_traceback
from playerfl.studies.backends.memory import collect_less
from playerfl.version import __version__

app = typer.Typer(
    name="playerfl",
    help="Personalised, layer-wise, cross-silo federated learning: which layers to share, and what each site gains.",
    epilog=examples(
        "run digits -a local -a fedavg -a player_fl",
        "run --resume runs/digits-player_fl-seed0-1",
        "report runs",
        "list algorithms",
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app)
app.add_typer(flower_app)
app.add_typer(paper_app, hidden=True)
app.command(epilog=RUN_EXAMPLES)(run)
app.command(epilog=REPORT_EXAMPLES)(report)
app.command(epilog=EXPORT_EXAMPLES)(export)
app.command(epilog=PREDICT_EXAMPLES)(predict)
app.command(epilog=WATCH_EXAMPLES)(watch)
app.command(epilog=PROBE_EXAMPLES)(probe)
app.command(epilog=LAYERS_EXAMPLES)(layers)
app.command(epilog=STUDY_EXAMPLES)(study)
app.command(epilog=MULTIVERSE_EXAMPLES)(multiverse)
app.command(epilog=ANALYZE_EXAMPLES)(analyze)


_INTERRUPTED = 130
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> None:
    """Runs a command; bad input is reported in one sentence, without a traceback."""
    collect_less()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show μ or the lines of a table gets replacement characters, not an error.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except PlayerflError as problem:
        _fail(sentence_of(problem))
    except (KeyboardInterrupt, typer.Abort):
        _end_interrupted()
    except BrokenPipeError:
        _drop_output()
        sys.exit(141)
    except Exception as problem:
        if traceback := users_traceback(problem):
            print(f"playerfl: {sentence_of(problem)}\n{traceback}", end="", file=sys.stderr, flush=True)
            sys.exit(1)
        if isinstance(problem, OSError) and problem.filename is None and problem.errno in _NO_SPACE:
            _drop_output()
            from playerfl.storage.atomic_files import RERUN_HINT, storage_error

            _fail(str(storage_error(Path("stdout"), problem, RERUN_HINT)))
        if not hasattr(problem, "format_message"):
            raise
        if not (message := problem.format_message()):
            sys.exit(2)  # the help was shown instead
        # Some versions of typer repeat the suggestion of click.
        _fail(re.sub(r"(Did you mean .*?\?)\)? \(?Did you mean .*", r"\1", message))
    else:
        if code == _INTERRUPTED:
            # Some versions of typer turn Ctrl-C into this code, in silence.
            _end_interrupted()
        sys.exit(code or 0)


def _end_interrupted() -> NoReturn:
    print("interrupted", file=sys.stderr, flush=True)
    sys.exit(_INTERRUPTED)


def _drop_output() -> None:
    """What is left in the buffer of stdout cannot be written, and Python would complain about that when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str) -> None:
    print(f"playerfl: {sentence}", file=sys.stderr, flush=True)
    sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"playerfl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


_LISTS = ("algorithms", "tasks", "settings")


@app.command(
    name="list",
    epilog=examples("list algorithms", "list tasks --json"),
)
def list_(
    what: Annotated[str, typer.Argument()],
    as_json: Json = False,
) -> None:
    """List algorithms, tasks or settings, with their defaults.

    WHAT is algorithms, tasks, or settings (of runs and training).
    """
    if what not in _LISTS:
        raise ConfigError(one_of(what, _LISTS, "list"))
    from playerfl.cli.tables import catalogue

    entries = {"algorithms": catalogue.algorithms, "tasks": catalogue.tasks, "settings": catalogue.settings}[what]()
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    from playerfl.cli.tables.comparison import print_catalogue

    print_catalogue(what, entries)


@app.command(epilog=examples("selftest", "selftest mine.py:FedMedian", "selftest fedrep --json"))
def selftest(
    algorithm: Annotated[str | None, typer.Argument(metavar="[ALGORITHM]", show_default=False)] = None,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="With ALGORITHM: the time limit of each check.")
    ] = 60.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check on small synthetic sites that algorithms do what they claim.

    Without ALGORITHM: the identities between all methods that must hold. With one (a name, or your own as
    FILE.py:NAME): that it can be serialised, reordered, resumed after every exchange, repeated bit for bit, and so on.
    Exits with code 1 if something does not hold; a warning does not count.
    """
    held = _identities(as_json, quiet) if algorithm is None else _contract(algorithm, time_limit, as_json, quiet)
    if not held:
        raise typer.Exit(1)


def _identities(as_json: bool, quiet: bool) -> bool:
    from playerfl.cli.progress import step_counter
    from playerfl.selftest.identities import check, identities

    with step_counter("identities", len(list(identities())), quiet=quiet) as tick:
        findings = check(lambda _: tick())
    rows = [
        (f.identity.left.name, f.identity.right.name, f.identity.tolerance, f.difference, f.holds) for f in findings
    ]
    if as_json:
        keys = ("left", "right", "tolerance", "difference", "holds")
        print(json.dumps({"identities": [dict(zip(keys, row, strict=True)) for row in rows]}, indent=1))
    else:
        from playerfl.cli.tables.comparison import print_identities

        print_identities(rows)
    return all(finding.holds for finding in findings)


def _contract(algorithm: str, seconds: float, as_json: bool, quiet: bool) -> bool:
    from playerfl.cli.progress import step_counter
    from playerfl.selftest.contract import CHECKS, check_contract

    with step_counter("checks", len(CHECKS), quiet=quiet) as tick:
        findings = check_contract(algorithm, lambda _: tick(), seconds=seconds)
    held = sum(finding.holds for finding in findings)
    if as_json:
        rows = [{"check": f.check, "holds": f.holds, "problem": f.problem, "warning": f.warning} for f in findings]
        print(json.dumps({"algorithm": algorithm, "checks": rows}, indent=1))
    else:
        for finding in findings:
            print(f"{'BROKEN' if finding.problem else 'warns' if finding.warning else 'holds'}  {finding.check}")
            if sentence := finding.problem or finding.warning:
                print(f"        {sentence}")
        left_out = len(CHECKS) - len(findings)
        print(f"{held} of {len(CHECKS)} checks hold." + (f" {left_out} were left out." if left_out else ""))
    for finding in findings:
        if finding.traceback:
            print(finding.traceback, end="", file=sys.stderr)
    return held == len(CHECKS)


def _unwrap_help(group: typer.Typer) -> None:
    """Removes the line breaks of docstrings, which would leave ragged lines on a narrower terminal."""
    for command in group.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for nested in group.registered_groups:
        if nested.typer_instance is not None:
            _unwrap_help(nested.typer_instance)


_unwrap_help(app)

if __name__ == "__main__":
    main()
