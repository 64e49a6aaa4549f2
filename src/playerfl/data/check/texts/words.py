"""Words such as None and NA that are read as missing values, although they may be values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from playerfl.data.check.result import DataCheck, listing, set_to
from playerfl.data.check.texts.codings import recode_setting
from playerfl.data.check.texts.labels import missing_setting
from playerfl.data.encoding.rules import CellRules
from playerfl.data.encoding.target import Target
from playerfl.data.readers.site_tables import SiteTable

_AMBIGUOUS = "none"


def check_words(
    check: DataCheck,
    tables: Mapping[str, SiteTable],
    target: Target | None,
    inputs: Sequence[str],
    rules: CellRules,
) -> None:
    """Adds findings on words that no rule says anything about.

    In the target, any of them may be a class. In an input, NA is hardly ever a value, but None may be: no complication.
    """
    certain: dict[str, list[str]] = {}
    for name in [*([] if target is None else [target.name]), *inputs]:
        unexplained = _unexplained(name, tables, rules)
        is_target = target is not None and name == target.name
        if unexplained and (is_target or any(word.lower() == _AMBIGUOUS for word in unexplained)):
            _ask(check, name, unexplained, _kept(name, unexplained, tables, is_target), is_target=is_target)
        elif unexplained:
            certain[name] = list(unexplained)
    if certain:
        words = sorted({word for of_column in certain.values() for word in of_column})
        name, of_column = next(iter(certain.items()))
        check.add(
            "note",
            "missing",
            f"read as missing: {listing(list(map(repr, words)))} in {listing(list(map(repr, certain)))}",
            _kept(name, of_column, tables, is_target=False),
        )


def _unexplained(name: str, tables: Mapping[str, SiteTable], rules: CellRules) -> dict[str, dict[str, int]]:
    """The words of a column that no rule names, with their number at each site."""
    counts: dict[str, dict[str, int]] = {}
    for site, table in tables.items():
        own = rules.at(site)
        known = own.missing(name) | own.new_values(name).keys()
        for word, count in table.words[name].value_counts().items() if name in table.words else ():
            if str(word) not in known:
                counts.setdefault(str(word), {})[site] = int(count)
    return counts


def _ask(check: DataCheck, name: str, words: Mapping[str, Mapping[str, int]], keep: str, *, is_target: bool) -> None:
    shown = [f"{w!r} ({', '.join(f'{site} {n:,}' for site, n in by_site.items())})" for w, by_site in words.items()]
    consequence = "counts as a missing value; to keep it as a value, name it"
    if len(words) > 1:
        consequence = "count as missing values; to keep them as values, name them"
    check.add(
        "warning",
        "missing",
        f"{'target' if is_target else 'column'} {name!r}: {listing(shown)} {consequence}",
        f"{keep} (or, if missing is right, {missing_setting(name, list(words))})",
        name,
        sorted({site for by_site in words.values() for site in by_site}),
    )


def _kept(name: str, words: Iterable[str], tables: Mapping[str, SiteTable], is_target: bool) -> str:
    setting = recode_setting({name: {word: word for word in words}}) or "data.recode"
    beside_numbers = not is_target and any(table.frame[name].dtype.kind in "if" for table in tables.values())
    return f"{setting} {set_to('category_columns', name)}" if beside_numbers else setting
