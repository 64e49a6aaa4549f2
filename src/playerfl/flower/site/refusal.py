"""RefusedError: a site does not do what an envelope asks."""

from __future__ import annotations

from playerfl.flower.wire.envelopes import Code


class RefusedError(Exception):
    """The server receives the code; the details stay in the site's log and audit log."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code: Code = code
