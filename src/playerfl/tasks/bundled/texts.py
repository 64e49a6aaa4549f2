"""What the text tasks share: how texts become tokens, and the transformer that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import Field
from torch import nn

from playerfl.data.examples import TensorExamples
from playerfl.data.readers.text import RESERVED, HashedVocabulary, Tokens, WordPieces
from playerfl.data.sites import Sites
from playerfl.errors import DataError
from playerfl.models.transformer import TextTransformer
from playerfl.tasks.task import PaperOptions, split_site

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
    examples: Mapping[str, Sequence[tuple[str, int]]], options: TextOptions, notes: Sequence[str] = ()
) -> Sites:
    """Sites sorted by name, from each one's (text, label) pairs."""
    tokens = options.tokens()
    sites = {}
    for site in sorted(examples):
        if not examples[site]:
            raise DataError(f"{site} has no texts in this file, and every site needs some")
        texts, labels = zip(*examples[site], strict=True)
        encoded = TensorExamples(tokens.encode(texts, options.length), torch.tensor(labels))
        sites[site] = split_site(encoded, options.split_seed, site, shares=options.shares)
    return Sites(sites, (*notes, tokens.about))
