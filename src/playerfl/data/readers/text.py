"""Texts as rows of token ids: hashed words, or word pieces from a vocabulary file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from playerfl.errors import ConfigError, DataError

PADDING = 0
SUMMARY = 1
"""The id of the first token, at whose position a model summarises the text."""
RESERVED = 2

_WORD = re.compile(r"[@#]?\w+(?:['’]\w+)*|[^\w\s]")
_LARGEST_FILE = 2**26
_MOST_PIECES = 1_000_000
_BATCH = 256
"""Texts at a time: the library holds a few hundred bytes per token until a batch is done."""


class Tokens(Protocol):
    """Turns texts into ids below `size`."""

    size: int
    padding: int
    about: str
    """A note for readers of the results."""

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """Ids (rows, length): the summary token, the text's first tokens, padding."""
        ...


class HashedVocabulary:
    """Lower-case words, @handles, #hashtags and punctuation marks, each with an id that depends on its spelling only.

    Nothing is learnt from the texts, so sites agree without exchanging words. Different words may share an id.

    >>> HashedVocabulary(10_000).encode(["Great flight, @united!"], 8)
    tensor([[   1,  656, 3459,  176, 2089, 8501,    0,    0]])
    """

    def __init__(self, size: int) -> None:
        if size <= RESERVED:
            raise ConfigError(f"a vocabulary needs more than {RESERVED} ids, not {size}; 10,000 is usual")
        self.size = size
        self.padding = PADDING
        self.about = f"hashed word vocabulary of {size:,} ids instead of BERT word pieces"
        self._known: dict[str, int] = {}

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        return _padded((self._ids(text) for text in texts), len(texts), length)

    def _ids(self, text: str) -> Iterator[int]:
        for match in _WORD.finditer(text):
            word = match.group().lower()
            if word not in self._known:
                self._known[word] = self._id(word)
            yield self._known[word]

    def _id(self, word: str) -> int:
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return RESERVED + int.from_bytes(digest, "little") % (self.size - RESERVED)


class WordPieces:
    """Word pieces of a tokenizer.json or a BERT vocab.txt, through the optional library `tokenizers`.

    Ids are shifted by two to make room for padding and the summary token; the file's own special
    tokens do not matter.
    """

    def __init__(self, file: Path) -> None:
        self._tokenizer = _read_tokenizer(file)
        # The largest id counts, not the number of pieces: a file may skip ids.
        pieces = 1 + max(self._tokenizer.get_vocab().values(), default=0)
        if pieces > _MOST_PIECES:
            raise DataError(f"{file} has ids up to {pieces - 1:,}; the limit is {_MOST_PIECES:,} pieces")
        self.size = pieces + RESERVED
        self.padding = PADDING
        self.about = f"{pieces:,} word pieces of {file.name}; their embeddings start at random instead of from BERT"

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        return _padded(self._ids(texts), len(texts), length)

    def _ids(self, texts: Sequence[str]) -> Iterator[Iterator[int]]:
        for start in range(0, len(texts), _BATCH):
            for encoding in self._tokenizer.encode_batch(texts[start : start + _BATCH], add_special_tokens=False):
                yield (i + RESERVED for i in encoding.ids)


class PretrainedPieces:
    """Word pieces with the ids, special tokens and padding of their file: what a pretrained model was trained with."""

    def __init__(self, file: Path) -> None:
        self._tokenizer = _read_tokenizer(file)
        pieces = self._tokenizer.get_vocab()
        self.size = 1 + max(pieces.values(), default=0)
        if self.size > _MOST_PIECES:
            raise DataError(f"{file} has ids up to {self.size - 1:,}; the limit is {_MOST_PIECES:,} pieces")
        self.padding = next((pieces[name] for name in ("[PAD]", "<pad>") if name in pieces), PADDING)
        self.about = f"{self.size:,} word pieces of {file.name}, with its own ids (padding: {self.padding})"

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        ids = np.full((len(texts), length), self.padding, dtype=np.int64)
        # Truncation by the library keeps the special tokens at both ends.
        self._tokenizer.enable_truncation(length)
        for start in range(0, len(texts), _BATCH):
            for row, encoding in enumerate(self._tokenizer.encode_batch(texts[start : start + _BATCH]), start):
                ids[row, : len(encoding.ids)] = encoding.ids
        return torch.from_numpy(ids)


def _padded(rows: Iterable[Iterator[int]], count: int, length: int) -> Tensor:
    ids = np.full((count, length), PADDING, dtype=np.int64)
    ids[:, 0] = SUMMARY
    for place, row in zip(ids, rows, strict=True):
        tokens = list(islice(row, length - 1))
        place[1 : 1 + len(tokens)] = tokens
    return torch.from_numpy(ids)


def _read_tokenizer(file: Path) -> Any:
    try:
        import tokenizers
    except ImportError as problem:
        raise ConfigError(
            "word pieces need the library tokenizers; pip install 'playerfl[text]', "
            "or leave out data.tokenizer for a hashed word vocabulary"
        ) from problem
    text = _read_text(file)
    # The library raises plain Exception for anything it cannot read.
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text) if file.suffix == ".json" else _bert_tokenizer(text)
    except Exception as problem:
        reason = str(problem).partition("\n")[0]
        raise DataError(f"{file} is neither a tokenizer.json nor a BERT vocab.txt: {reason}") from problem
    # The file may turn on padding or truncation, but both are done here.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _read_text(file: Path) -> str:
    try:
        size = file.stat().st_size
        if size > _LARGEST_FILE:
            raise DataError(f"{file} has {size:,} bytes; the limit for a tokenizer file is {_LARGEST_FILE:,}")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise DataError(f"{file} is not text; give a tokenizer.json or a BERT vocab.txt") from problem
    except OSError as problem:
        raise DataError(
            f"cannot read the tokenizer {file}: {problem.strerror}; give the path of a tokenizer.json or a vocab.txt"
        ) from problem


def _bert_tokenizer(text: str) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = {piece: number for number, piece in enumerate(text.rstrip("\n").split("\n"))}
    if "[UNK]" not in pieces:
        raise ValueError("it has no line [UNK]")
    # A vocabulary without capital letters was made from lower-case text.
    lowercase = not any("A" <= piece[:1] <= "Z" for piece in pieces)
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if {"[CLS]", "[SEP]"} <= pieces.keys():
        ends = [(name, pieces[name]) for name in ("[SEP]", "[CLS]")]
        tokenizer.post_processor = processors.BertProcessing(*ends)
    return tokenizer
