"""Freed memory is kept while a run trains, and given back afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import playerfl
from playerfl.runs import memory


def test_settings_are_made_once_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many pages a tensor then takes depends on the heap that others have shaped, so only the calls are checked."""
    calls = list[tuple[str, tuple[int, ...]]]()

    def function(name: str) -> Callable[..., int]:
        def called(*arguments: int) -> int:
            calls.append((name, arguments))
            return 1

        return called

    monkeypatch.setattr(memory, "_function", function)
    monkeypatch.setattr(memory, "_keeping", False)
    with memory.freed_memory_kept():
        made = [("mallopt", (-3, memory.LARGEST_KEPT)), ("mallopt", (-1, 2**31 - 1))]
        assert calls == made
        # A second one changes nothing: the settings are those of the process.
        with memory.freed_memory_kept():
            pass
        assert calls == made
    assert calls[2:] == [("mallopt", (-3, 2**25)), ("mallopt", (-1, 2**26)), ("malloc_trim", (0,))]


def test_a_run_keeps_it_and_gives_it_back() -> None:
    during = list[bool]()
    with memory.freed_memory_kept():
        if not memory._keeping:
            pytest.skip("the C library has no such setting")
    playerfl.run("synthetic", "fedavg", rounds=1, listener=lambda _: during.append(memory._keeping))
    assert during and all(during) and not memory._keeping
