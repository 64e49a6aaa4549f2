"""FolderOptions: the `[data]` settings of a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field
from torch import nn

from playerfl.data.encoding.scaling import FAR, Scaling
from playerfl.data.encoding.target import MissingPolicy, TargetKind
from playerfl.data.sites import Sites
from playerfl.tasks.task import DataOptions

_SHOWN_CLASSES = 10


def _as_texts(given: object) -> object:
    listed = given if isinstance(given, list | tuple) else (given,)
    return tuple(f"{text:g}" if type(text) in (int, float) else text for text in listed)


Names = Annotated[tuple[str, ...], BeforeValidator(_as_texts)]
"""Column names or values; one need not be in a list."""


class FolderOptions(DataOptions):
    """How a folder's tables or images are read."""

    added: ClassVar[frozenset[str]] = frozenset(
        {"missing_codes", "scaling", "clip", "group", "group_pattern", "groups_span_sites", "skip_sites"}
    )

    target: str | None = None
    """The column to predict. Default: the one called target, label, class, outcome or y, else the last."""
    kind: TargetKind = "auto"
    """Whether the target is a class or a number."""
    missing: MissingPolicy = "refuse"
    """What to do about missing values: refuse the file, drop the row, or use the mean of the site's training rows."""
    missing_codes: Names = ()
    """Values that stand for a missing one, such as -999, or "age=99" for one column only."""
    drop_columns: Names = ()
    """Columns that are not read."""
    category_columns: Names = ()
    """Columns whose numbers are codes, to be read as categories."""
    group: str | None = None
    """The column that says which rows belong together, such as the patient; for images, a table with the columns
    picture and group. A group is never divided between training, validation and test."""
    group_pattern: str | None = None
    """For images: a regular expression that finds the group in the name of a file, such as "patient(\\d+)"."""
    groups_span_sites: bool = False
    """Whether the same group name at two sites means the same group, such as a patient known to both."""
    skip_sites: Names = ()
    """Files or folders that are not sites, such as a template."""
    scaling: Scaling = "auto"
    """Numbers are scaled with mean and standard deviation, with median and robust spread, or (auto) with the latter
    only where a few values are very far from the others."""
    clip: float = Field(FAR, ge=0, allow_inf_nan=False)
    """Scaled numbers beyond this are set to it; 0 switches it off."""
    image_size: int = Field(32, ge=8, le=512)
    """Images are scaled to this many pixels per side."""


@dataclass(frozen=True)
class FolderData:
    """A folder's content: its sites, and the model that fits them."""

    sites: Sites
    build_model: Callable[[], nn.Module]


def listed_classes(classes: Sequence[str]) -> str:
    """Classes with their numbers, the first few of them."""
    shown = ", ".join(f"{number} = {name}" for number, name in enumerate(classes[:_SHOWN_CLASSES]))
    return f"{len(classes)} classes ({shown}{', …' if len(classes) > _SHOWN_CLASSES else ''})"
