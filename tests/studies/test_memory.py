"""The memory settings of workers."""

from __future__ import annotations

import pytest

from playerfl.studies.backends.memory import large_pages


def test_large_pages_leave_the_users_own_settings_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert large_pages() == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1")
    # The last setting wins.
    assert large_pages()["GLIBC_TUNABLES"].endswith(":glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1")
