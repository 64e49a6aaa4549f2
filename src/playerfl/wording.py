"""Words that sentences everywhere need."""


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "site"), counted(3, "site"), counted(1200, "row")
    ('1 site', '3 sites', '1,200 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
