"""`playerfl export`: a site's trained model as a self-contained folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from playerfl.cli.messages import say
from playerfl.cli.options import DataDir, examples
from playerfl.data.download.directory import use_data_directory
from playerfl.errors import ConfigError

EXPORT_EXAMPLES = examples(
    "export runs/hospitals/player_fl --site north --out models/north",
    "export runs/first --site site-0 --out models/digits --no-onnx",
    "export --state /var/lib/playerfl/readmission --task ./data --site north --out models/north",
)


def export(
    run: Annotated[Path | None, typer.Argument()] = None,
    site: Annotated[str | None, typer.Option(help="The site whose model to export.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="STATE/JOB", help="Instead of RUN: a finished job in a site's own state directory."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="With --state: where the site's data are, as in `playerfl flower site`.")
    ] = None,
    onnx: Annotated[
        bool | None,
        typer.Option("--onnx/--no-onnx", help="Whether to write an ONNX file (default: if possible)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model in --out.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Write the model that a site keeps into a self-contained folder.

    RUN is the directory of a finished run. The folder has the weights, the model's operations, how rows become inputs,
    test scores, a model card, a loader that needs only torch and, if possible, an ONNX file. The data must be where
    they were when the model was trained.
    """
    if (run is None) == (state is None):
        raise ConfigError("give either a run, or --state STATE/JOB at a site")
    if task is not None and state is None:
        raise ConfigError("--task is only for --state; a run knows its task")
    if site is None:
        raise ConfigError(f"give the site with --site{_sites_of(run)}")
    if out is None:
        raise ConfigError(f"give the folder to write with --out, as in --out models/{site}")
    from playerfl.export.folder import check_free
    from playerfl.export.site_model import model_of_run, model_of_site
    from playerfl.export.write import write_model
    from playerfl.tasks.load import load_task

    check_free(out, overwrite=overwrite)
    with use_data_directory(data_dir):
        if run is not None:
            source = model_of_run(run, site)
        else:
            assert state is not None
            source = model_of_site(state, site, None if task is None else load_task(task))
    choice = {None: "auto", True: "require", False: "never"}[onnx]
    exported = write_model(source, out, onnx=choice, overwrite=overwrite)  # type: ignore[arg-type]
    print(out)
    say(
        f"checked: on {exported.test_rows} test rows, the exported model differs from the trained one by at most "
        f"{exported.largest_difference:.2g}"
    )
    if exported.why_no_onnx and onnx is None:
        say(f"note: there is no ONNX file: {exported.why_no_onnx}")
    say(f"model card: {out / 'README.md'}")


def _sites_of(run: Path | None) -> str:
    """The sites to choose from, if the run can be read."""
    from playerfl.errors import PlayerflError
    from playerfl.runs.directory import RunDirectory

    try:
        sites = RunDirectory.open(run).read_json("data.json").get("sites") if run is not None else None
    except PlayerflError:
        return ""
    return f"; the run has: {', '.join(sorted(map(str, sites)))}" if isinstance(sites, dict) else ""
