"""Every reader, with a valid example of what it reads."""

from __future__ import annotations

from functools import partial

import data_files as data
import flower_files as flower
import run_files as runs
import settings_files as settings
from reader import Reader, written

READERS = (
    Reader(
        "experiment file",
        partial(written, {"experiment.toml": settings.EXPERIMENT}),
        settings.read_experiment,
        weight=3,
    ),
    Reader(
        "settings on the command line", partial(written, {"settings.txt": settings.SETTINGS}), settings.read_setting
    ),
    Reader("study file", partial(written, {"study.toml": settings.STUDY}), settings.read_study_file, weight=2),
    Reader(
        "thresholds file",
        partial(written, {"thresholds.toml": settings.THRESHOLDS}),
        settings.read_thresholds_file,
        weight=2,
    ),
    Reader("thresholds' cases", settings.cases, settings.read_cases),
    Reader("run directory, reported", runs.finished_run, runs.report, weight=0.5),
    Reader("run directory, loaded", runs.finished_run, runs.load_run, weight=2),
    Reader("run directory, resumed", runs.unfinished_run, runs.resume_run, writes=True, weight=0.5),
    Reader("comparison, reported", runs.compared_runs, runs.report, weight=0.5),
    Reader("study directory, reported", runs.small_study, runs.report, runs.repair_fingerprints, weight=0.5),
    Reader("archive, reported", runs.archive, runs.report, runs.repair_archive, ("archive.json",), weight=0.5),
    Reader("multiverse, reported", runs.multiverse, runs.report),
    Reader("checkpoint file", runs.checkpoint_file, runs.read_checkpoint, runs.repair_fingerprints, weight=4),
    Reader("idx and idx.gz", data.fashion, data.read_fashion, weight=2),
    Reader("CIFAR's binary files", data.cifar, data.read_cifar_files, weight=2),
    Reader("heart's tables", data.heart, partial(data.read_task, "heart"), weight=2),
    Reader("tweets (CSV of texts)", data.tweets, partial(data.read_task, "tweets", length=8), weight=2),
    Reader(
        "Sentiment140 (CSV in gzip)", data.sent140, partial(data.read_task, "sent140", length=8, last_rank=2), weight=2
    ),
    Reader("MIMIC-III (two CSV tables)", data.mimic, partial(data.read_task, "mimic3", length=8), weight=2),
    Reader("pictures (PNG, JPEG)", data.pictures, data.read_pictures, weight=3),
    Reader("ISIC (table and zip of pictures)", data.isic, partial(data.read_task, "isic2019", side=16)),
    Reader("folder of CSV sites", data.site_csv, data.read_folder, weight=3),
    Reader("folder of parquet sites", data.site_parquet, data.read_folder, weight=2),
    Reader("folder of npz sites", data.site_npz, data.read_folder, weight=3),
    Reader("folders of pictures", data.picture_folders, partial(data.read_folder, image_size=8)),
    Reader("hub table (parquet of pictures)", data.hub, data.read_hub),
    Reader("tokenizer files", data.tokenizers, data.read_tokenizers, weight=2),
    Reader("downloaded archives (zip, tar.gz)", data.packed, data.unpack_all, writes=True, weight=2),
    Reader("Flower: envelopes at a site", flower.envelope_records, flower.read_envelopes, writes=True),
    Reader(
        "Flower: responses at the server", flower.response_records, flower.read_responses, weight=2, skips=("state",)
    ),
    Reader(
        "Flower: a site's state",
        flower.site_state,
        flower.read_envelopes,
        runs.repair_fingerprints,
        writes=True,
        skips=("records",),
    ),
    Reader("Flower: app folder", flower.app_folder, flower.read_app),
    Reader("probe's recommendation", runs.profiles, runs.read_profiles),
)
