"""What a site's state file holds: the last responses with the states after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from playerfl.errors import RunDirectoryError
from playerfl.federation.messages import Reply, Score, Upload

_STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
_Scalar = int | float | str


def _score(parts: list[Any]) -> list[Any]:
    if [type(part) for part in parts] != [str, int, str, str, float]:
        raise ValueError("it is no score")
    return parts


def _alike(values: list[_Scalar]) -> list[_Scalar]:
    if len({type(value) for value in values}) > 1:
        raise ValueError("its values are not of one kind")
    return values


class _Reply(BaseModel):
    model_config = _STRICT

    num_examples: Annotated[int, Field(ge=0, lt=2**63)]
    weights: dict[str, Tensor]
    info: dict[str, _Scalar | Annotated[list[_Scalar], AfterValidator(_alike)]]
    scores: list[Annotated[list[Any], AfterValidator(_score)]]


class _Past(BaseModel):
    model_config = _STRICT

    key: str
    state: dict[str, Any] | None


class _State(_Past):
    history: list[_Past]
    asked: str
    reply: _Reply
    secure: bool
    fingerprint: str


def check_state(stored: Any) -> dict[str, Any]:
    """The same, if it is what a site writes."""
    try:
        _State.model_validate(stored)
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(part)[:40] for part in first["loc"])
        raise RunDirectoryError(f"the state holds what no site writes ({place}: {first['msg']})") from None
    found: dict[str, Any] = stored
    return found


def reply_as_tree(reply: Reply) -> dict[str, Any]:
    upload = reply.upload
    return {
        "num_examples": upload.num_examples,
        "weights": dict(upload.weights),
        "info": dict(upload.info),
        "scores": [list(score) for score in reply.scores],
    }


def reply_from_tree(tree: Mapping[str, Any]) -> Reply:
    upload = Upload(tree["num_examples"], tree["weights"], tree["info"])
    return Reply(upload, tuple(Score(*score) for score in tree["scores"]))
