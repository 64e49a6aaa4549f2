"""Shared by the text tasks: how texts become tokens, and the transformer that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import Field
from torch import nn

from playerfl.data.examples import SiteData, TensorExamples
from playerfl.data.partition import Indices
from playerfl.data.readers.text import RESERVED, HashedVocabulary, Tokens, WordPieces
from playerfl.data.sites import PartGroups, Sites
from playerfl.errors import DataError
from playerfl.models.transformer import TextTransformer
from playerfl.tasks.task import PaperOptions, split_across_sites, split_site

_WIDTHS = {"paper": (768, 3072), "small": (192, 768), "tiny": (32, 128)}


class TextOptions(PaperOptions):
    """Texts truncated or padded to a length, in tokens of a hashed vocabulary or of your own tokenizer."""

    length: int = Field(119, ge=2, le=100_000)
    """Tokens per text, including the summary token."""
    vocabulary: int = Field(10_000, gt=RESERVED, le=1_000_000)
    """Size of the hashed word vocabulary; a tokenizer has its own."""
    tokenizer: str | None = None
    """Path of a tokenizer.json or a BERT vocab.txt, for word pieces (extra `text`)."""

    def tokens(self) -> Tokens:
        if self.tokenizer is not None:
            return WordPieces(Path(self.tokenizer).expanduser())
        return HashedVocabulary(self.vocabulary)

    def transformer(self, classes: int) -> nn.Module:
        width, hidden = _WIDTHS[self.size]
        return self.initialised(TextTransformer(self.tokens().size, self.length, width, hidden, classes))


def encode_sites(
    examples: Mapping[str, Sequence[tuple[str, int]]],
    options: TextOptions,
    notes: Sequence[str] = (),
    groups: Mapping[str, Indices] | None = None,
) -> Sites:
    """Sites sorted by name, from each one's (text, label) pairs.

    Texts of one group, such as those about one patient, are in the same part at all sites.
    """
    tokens = options.tokens()
    encoded = {}
    for site in sorted(examples):
        if not examples[site]:
            raise DataError(f"{site} has no text in this file, and every site needs some")
        texts, labels = zip(*examples[site], strict=True)
        encoded[site] = TensorExamples(tokens.encode(texts, options.length), torch.tensor(labels))
    about = (*notes, tokens.about)
    if groups is None:
        return Sites(
            {s: split_site(e, options.split_seed, s, shares=options.shares) for s, e in encoded.items()}, about
        )
    targets = {site: of_site.targets for site, of_site in encoded.items()}
    split = split_across_sites(targets, groups, options.split_seed, shares=options.shares)
    sites = {s: SiteData(*(e.rows(torch.from_numpy(part)) for part in split[s])) for s, e in encoded.items()}
    return Sites(sites, about, groups={s: PartGroups(*(groups[s][part] for part in split[s])) for s in sites})
