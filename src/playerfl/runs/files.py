"""The keys of a run's JSON files: for the code that writes them, and for `schema`, which checks them on reading.

Some values are defined next to the code that produces them: `DataRecord`, `CutRecord` and `ProfileRecord`.
"""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from playerfl.data.sites import DataRecord
from playerfl.federation.messages import SiteId
from playerfl.layers.cut import CutRecord
from playerfl.layers.sensitivity import ProfileRecord
from playerfl.learning.metrics.metric import MetricRecord


class EnvironmentFile(TypedDict):
    """environment.json: what produced a run. Nothing in it identifies a person or a machine."""

    playerfl: str
    git_commit: str | None
    """The commit of the source tree ("-dirty" if it has changed since), or None for an installed package."""
    python: str
    torch: str
    numpy: str
    system: str
    machine: str
    cpu_capability: str
    device: str
    threads: int
    format: NotRequired[str]
    """The format of the run directory."""
    resumed_with: NotRequired[list[EnvironmentFile]]
    """Other environments in which the run was continued."""


class FrozenRecord(TypedDict):
    """The weights that no site trains, such as the pretrained model under adapters."""

    entries: list[str]
    parameters: int
    digest: str
    """A run continues only with the same ones."""
    full_fine_tuning_bytes: int
    """What a site would send per round if the whole model were trained instead, without its adapters."""


class DataFile(DataRecord):
    """data.json: the data and the model of a run, which must be the same when it is resumed."""

    paper: str | None
    """The paper's name for this dataset."""
    model: dict[str, list[int]]
    """The shape of every entry."""
    trainer: str
    frozen: NotRequired[FrozenRecord]
    """Where part of the model is frozen; earlier versions did not say."""
    metrics: NotRequired[dict[str, MetricRecord]]
    """What is recorded besides the loss, in order; not recorded by earlier versions."""
    positive_class: NotRequired[int]
    """The class that metrics of two classes are about, if it is not number 1."""
    class_names: NotRequired[list[str]]
    """The names of the classes, where they have names."""
    warnings: NotRequired[list[str]]
    """What the data check warned about before the run."""


class LayerRecord(TypedDict):
    """One layer of the model."""

    name: str
    entries: list[str]
    parameters: int


class LayersFile(TypedDict):
    """layers.json: what is known about the layers."""

    layers: list[LayerRecord]
    decision: CutRecord | None
    """Where the layers were cut, for an algorithm that decides on a cut."""
    profiles: dict[SiteId, ProfileRecord]
    """The layer scores of each site that measured them."""
    common_rounds: NotRequired[list[int]]
    """The rounds after which all sites predicted with one model."""


class TimingFile(TypedDict):
    """timing.json: how long the run took."""

    wall_seconds: float
    runs_side_by_side: int
    """How many runs shared the process, and so its wall time."""
