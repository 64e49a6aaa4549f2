"""A text has the same ids on every machine and in every process, whatever was read before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from playerfl.data.readers.text import HashedVocabulary, PretrainedPieces, WordPieces
from playerfl.errors import ConfigError, DataError, PlayerflError

SIZE = 1_000_000


def words(text: str, length: int = 12) -> list[int]:
    """The ids of a text, without the summary token and padding, in a vocabulary too large for collisions."""
    ids = HashedVocabulary(SIZE).encode([text], length)[0].tolist()
    return [i for i in ids[1:] if i]


def test_rows_are_the_summary_token_then_tokens_then_padding() -> None:
    ids = HashedVocabulary(50).encode(["one two three", "", "a b c d e f g h"], 5)
    assert ids.shape == (3, 5)
    assert str(ids.dtype) == "torch.int64"
    assert ids[:, 0].tolist() == [1, 1, 1]
    assert [int((row != 0).sum()) for row in ids] == [4, 1, 5]
    assert ids[0, 4] == 0
    assert int(ids[:, 1:][ids[:, 1:] != 0].min()) >= 2
    assert int(ids.max()) < 50


def test_no_texts_give_no_rows() -> None:
    assert HashedVocabulary(50).encode([], 4).shape == (0, 4)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Thanks", ["thanks"]),
        ("  two\n\twords ", ["two", "words"]),
        ("@United lost #my_bag", ["@united", "lost", "#my_bag"]),
        ("can't won’t", ["can't", "won’t"]),
        ("so... great!", ["so", ".", ".", ".", "great", "!"]),
        ("it's 10pm, ok?", ["it's", "10pm", ",", "ok", "?"]),
        ("@ # ' alone", ["@", "#", "'", "alone"]),
        ("Ärger ✈", ["ärger", "✈"]),
    ],
)
def test_what_a_token_is(text: str, tokens: list[str]) -> None:
    assert words(text) == [words(token)[0] for token in tokens]
    assert len({*words(text)}) == len({*tokens})


def test_ids_are_the_same_in_every_process() -> None:
    """Python's own hash of a text differs between processes."""
    ids = HashedVocabulary(10_000).encode(["Great flight, @united!"], 8)
    assert ids.tolist() == [[1, 656, 3459, 176, 2089, 8501, 0, 0]]


def test_ids_do_not_depend_on_what_was_read_before() -> None:
    used = HashedVocabulary(100)
    used.encode(["other words came first"], 8)
    assert used.encode(["hello world"], 4).tolist() == HashedVocabulary(100).encode(["hello world"], 4).tolist()


def test_a_lone_surrogate_is_read() -> None:
    assert len(words("broken \ud83d text")) == 3


def test_a_vocabulary_without_room_for_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="a vocabulary needs more than 2 ids, not 2; 10,000 is usual"):
        HashedVocabulary(2)


def test_word_pieces_without_the_library_say_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install 'playerfl\[text\]', or leave out data\.tokenizer"):
        WordPieces(tmp_path / "vocab.txt")


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "fares", "!"]


def vocabulary_file(folder: Path, pieces: list[str]) -> Path:
    file = folder / "vocab.txt"
    file.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return file


def tokenizer_file(folder: Path, vocabulary: dict[str, int]) -> Path:
    file = folder / "tokenizer.json"
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": vocabulary,
    }
    padding = {"strategy": {"Fixed": 40}, "direction": "Left", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    rest = {"post_processor": None, "decoder": None, "truncation": None, "added_tokens": [], "padding": padding}
    parts = {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    file.write_text(json.dumps({"version": "1.0", **parts, **rest}), encoding="utf-8")
    return file


def test_pieces_of_a_bert_vocabulary(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    pieces = WordPieces(vocabulary_file(tmp_path, PIECES))
    assert pieces.size == len(PIECES) + 2
    assert pieces.encode(["UNAFFABLE fares!", "strange", ""], 7).tolist() == [
        [1, 6, 7, 8, 9, 10, 0],
        [1, 3, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0],
    ]
    assert pieces.encode(["unaffable fares!"], 4).tolist() == [[1, 6, 7, 8]]
    assert "9 word pieces of vocab.txt" in pieces.about


def test_a_cased_vocabulary_keeps_capitals(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    pieces = WordPieces(vocabulary_file(tmp_path, ["[UNK]", "Delta", "delta"]))
    assert pieces.encode(["Delta delta"], 3).tolist() == [[1, 3, 4]]


def test_pieces_of_a_tokenizer_file_without_its_padding(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    file = tokenizer_file(tmp_path, {piece: number for number, piece in enumerate(PIECES)})
    assert WordPieces(file).encode(["unaffable fares !"] * 300, 7)[299].tolist() == [1, 6, 7, 8, 9, 10, 0]


def test_a_pretrained_model_gets_the_ids_it_knows(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    bert = PretrainedPieces(vocabulary_file(tmp_path, PIECES))
    assert (bert.size, bert.padding) == (len(PIECES), 0)
    assert bert.encode(["UNAFFABLE fares!", ""], 8).tolist() == [[2, 4, 5, 6, 7, 8, 3, 0], [2, 3, 0, 0, 0, 0, 0, 0]]
    assert bert.encode(["unaffable fares!"], 4).tolist() == [[2, 4, 5, 3]]
    # A file that says nothing about special tokens adds none, and other families pad with other ids.
    roberta = PretrainedPieces(tokenizer_file(tmp_path, {"<s>": 0, "<pad>": 1, "[UNK]": 2, "fares": 3}))
    assert roberta.encode(["fares"] * 300, 3)[299].tolist() == [3, 1, 1]
    assert "4 word pieces of tokenizer.json, with its own ids (padding: 1)" in roberta.about


def test_ids_that_are_left_out_still_have_room(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    pieces = WordPieces(tokenizer_file(tmp_path, {"[UNK]": 0, "fares": 40}))
    assert pieces.encode(["fares"], 2).tolist() == [[1, 42]]
    assert pieces.size == 43


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.json", None, r"cannot read the tokenizer .*absent\.json: No such file or directory; give the path"),
        ("tokenizer.json", b"{", r"tokenizer\.json is neither a tokenizer\.json nor a BERT vocab\.txt: "),
        ("tokenizer.json", b"[1, 2]", r"is neither a tokenizer\.json nor a BERT vocab\.txt: "),
        ("vocab.txt", b"only\nwords\n", r"nor a BERT vocab\.txt: it has no line \[UNK\]"),
        ("vocab.txt", b"", r"nor a BERT vocab\.txt: it has no line \[UNK\]"),
        ("vocab.txt", b"\x80\x04\x95pickle", r"vocab\.txt is not text; give a tokenizer\.json or a BERT vocab\.txt"),
    ],
)
def test_files_that_are_not_tokenizers_are_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=message) as problem:
        WordPieces(file)
    assert "\n" not in str(problem.value)


def test_oversized_tokenizers_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    with pytest.raises(PlayerflError, match=r"has ids up to 4,000,000,000; the limit is 1,000,000 pieces"):
        WordPieces(tokenizer_file(tmp_path, {"[UNK]": 0, "fares": 4_000_000_000}))
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(PlayerflError, match=r"has 67,108,865 bytes; the limit for a tokenizer file is 67,108,864"):
        WordPieces(large)
