"""Words that sentences everywhere need."""


def counted(count: int, noun: str, several: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "site"), counted(3, "site"), counted(1200, "row"), counted(2, "batch", "batches")
    ('1 site', '3 sites', '1,200 rows', '2 batches')
    """
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"
