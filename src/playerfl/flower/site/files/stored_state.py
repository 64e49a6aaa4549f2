"""StoredState: what a site's state file holds, checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from playerfl.errors import RunDirectoryError
from playerfl.federation.messages import Reply, Score, Upload
from playerfl.storage import tensor_tree

ClientState = Mapping[str, Any]
"""What `Client.state` returns; its keys are up to the client and the algorithm. Tensors may still be in a file."""


@dataclass(frozen=True)
class Generation:
    """The client's state after one response."""

    key: str
    """The key of the response; "" before the first one."""
    state: ClientState | None
    """None before the first response."""


@dataclass(frozen=True)
class StoredState:
    """The last response, the client's state after it, and the generations before it."""

    history: tuple[Generation, ...]
    key: str
    asked: str
    """Fingerprint of the envelope that was responded to."""
    state: ClientState
    reply: Reply
    secure: bool = False
    """Whether the reply's weights may be fetched, masked, for secure aggregation."""
    fingerprint: str = ""
    """The fingerprint of the finished model."""

    @property
    def generations(self) -> tuple[Generation, ...]:
        """From the oldest to the latest."""
        return (*self.history, Generation(self.key, self.state))

    def to_tree(self) -> dict[str, Any]:
        return {
            "history": [{"key": past.key, "state": past.state} for past in self.history],
            "key": self.key,
            "asked": self.asked,
            "state": self.state,
            "reply": _reply_tree(self.reply),
            "secure": self.secure,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_tree(cls, tree: Any) -> StoredState:
        """The inverse of `to_tree`; RunDirectoryError if `tree` is anything else. Only the reply's tensors are read."""
        if isinstance(tree, dict) and "reply" in tree:
            tree = {**tree, "reply": tensor_tree.loaded(tree["reply"])}
        try:
            _State.model_validate(tree)
        except ValidationError as problem:
            first = problem.errors()[0]
            place = ".".join(str(part)[:40] for part in first["loc"])
            raise RunDirectoryError(f"the state was not written by a site ({place}: {first['msg']})") from None
        history = tuple(Generation(past["key"], past["state"]) for past in tree["history"])
        reply = tree["reply"]
        scores = tuple(Score(*score) for score in reply["scores"])
        return cls(
            history,
            tree["key"],
            tree["asked"],
            tree["state"],
            Reply(Upload(reply["num_examples"], reply["weights"], reply["info"]), scores),
            tree["secure"],
            tree["fingerprint"],
        )


def reply_digest(reply: Reply) -> str:
    """A fingerprint of what may leave of a reply, whatever the order of its tensors."""
    tree = _reply_tree(reply)
    return tensor_tree.digest({**tree, **{part: dict(sorted(tree[part].items())) for part in ("weights", "info")}})


def _reply_tree(reply: Reply) -> dict[str, Any]:
    """Everything but the confusion matrices, which stay here."""
    upload = reply.upload
    return {
        "num_examples": upload.num_examples,
        "weights": dict(upload.weights),
        "info": dict(upload.info),
        "scores": [list(score) for score in reply.scores],
    }


_STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
_Scalar = int | float | str


def _score(parts: list[Any]) -> list[Any]:
    if [type(part) for part in parts] != [str, int, str, str, float]:
        raise ValueError("not a score")
    return parts


def _of_one_type(values: list[_Scalar]) -> list[_Scalar]:
    if len({type(value) for value in values}) > 1:
        raise ValueError("its values have different types")
    return values


class _Reply(BaseModel):
    model_config = _STRICT

    num_examples: Annotated[int, Field(ge=0, lt=2**63)]
    weights: dict[str, Tensor]
    info: dict[str, _Scalar | Annotated[list[_Scalar], AfterValidator(_of_one_type)]]
    scores: list[Annotated[list[Any], AfterValidator(_score)]]


class _Generation(BaseModel):
    model_config = _STRICT

    key: str
    state: dict[str, Any] | None


class _State(_Generation):
    state: dict[str, Any]
    history: list[_Generation]
    asked: str
    reply: _Reply
    secure: bool
    fingerprint: str
