"""Broken inputs: a valid file changed at random, in its bytes, in its text, or in the files packed inside it.

Changed bytes alone rarely get past a checksum or a parser. So archives are repacked with broken members, trees are
changed node by node, and pictures get correct checksums.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import tarfile
import tomllib
import warnings
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import tomli_w

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 2**15, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400,
    0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan,
    "", " ", "0", "-1", "nan", "x" * 5000, "\0", "\ud800", "é\u202e", "a\nb", "../../up", "/etc/hostname",
    "C:\\x", ".", "a:b",
    "__import__('os').system('true')", "<script>alert(1)</script>", "%s%n", "float32", "int64", "validation", "north",
    [], [[]], {}, [None], ["a", 1], [1, 2, 3], {"name": "fedavg"}, {"": {}}, {"__tensor__": ["float32", 0, [1]]},
)  # fmt: skip
ODD_WORDS = (
    "", "0", "-1", "1e999", "nan", "inf", "-inf", "9" * 30, "9" * 5000, "0x10", "1_000", "١٢", "½", "²",
    "true", "null", "''", '"', '"""',
    "\\", "\0", "\r", "\n", "\t", ",", ";", "=", "[", "]", "[[", "{", "}", "#", "é", "\ud7ff", "\u2028", "\ufeff",
    "2101-13-40",
    "fedavg", "paper", "all", "x.py:task", "a:b", "../..", "~", "$HOME", "=1+1", "NA", "None", "label", "target",
)  # fmt: skip
_DEEP = 100_000
_MOST = 2**20
"""The longest broken input."""


class Breaker:
    """Breaks files at random; a generator with the same seed breaks them in the same way."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def broken(self, content: bytes, name: str) -> bytes:
        """A changed copy of the content of a file with this name."""
        ending = name.rpartition(".")[2].lower()
        ways = [way for endings, way in self._ways() if ending in endings]
        for _ in range(8):
            way = self.random.choice(ways) if ways and self.random.random() < 0.75 else self.of_bytes
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # zipfile warns about duplicate names
                    changed = way(content, name)
            except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, EOFError, OSError,
                    zipfile.BadZipFile, zlib.error, tarfile.TarError, AttributeError):  # fmt: skip
                continue  # content that is already broken cannot always be unpacked, or packed again
            if changed != content:
                return changed[:_MOST]
        return self.of_bytes(content, name)[:_MOST]

    def _ways(self) -> list[tuple[tuple[str, ...], Callable[[bytes, str], bytes]]]:
        return [
            (("json", "records"), self._of_json),
            (("jsonl",), self._of_json_lines),
            (("toml",), self._of_toml),
            (("toml", "json", "jsonl", "csv", "data", "txt"), self.of_text),
            (("csv", "data"), self._of_cells),
            (("gz", "tgz"), self._of_gzip),
            (("zip", "npz"), self._of_zip),
            (("tgz",), self._of_tar),
            (("safetensors",), self._of_safetensors),
            (("npy",), self._of_npy),
            (("png",), self._of_png),
        ]

    def of_bytes(self, content: bytes, name: str = "") -> bytes:
        data = bytearray(content)
        for _ in range(self._few()):
            at = self.random.randrange(len(data) + 1)
            length = min(self.random.choice((1, 1, 2, 4, 8, 64, 1000)), max(1, len(data)))
            match self.random.randrange(8):
                case 0 if data:
                    data[at % len(data)] ^= 1 << self.random.randrange(8)
                case 1:
                    data[at : at + length] = self.random.choice((b"\0", b"\xff", b"\x80", b"\n")) * length
                case 2:
                    data[at : at + length] = b""
                case 3:
                    data[at:at] = self.random.randbytes(length)
                case 4:
                    data[at:at] = data[: length * 4]
                case 5:
                    del data[at:]
                case 6:
                    size = self.random.choice((1, 2, 4, 8))
                    number = self.random.choice((0, 1, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1))
                    order = self.random.choice(("little", "big"))
                    data[at : at + size] = (number % 256**size).to_bytes(size, order)  # type: ignore[arg-type]
                case _:
                    data[at:at] = self.random.choice(ODD_WORDS).encode("utf-8", "surrogatepass")
        return bytes(data)

    def of_text(self, content: bytes, name: str = "") -> bytes:
        text = content.decode("utf-8", "replace")
        for _ in range(self._few()):
            lines = text.split("\n")
            words = list(re.finditer(r"[\w.+-]+", text))
            match self.random.randrange(7):
                case 0 | 1 | 2 if words:
                    word = self.random.choice(words)
                    text = text[: word.start()] + self.random.choice(ODD_WORDS) + text[word.end() :]
                case 3:
                    lines.insert(self.random.randrange(len(lines) + 1), self.random.choice(lines))
                    text = "\n".join(lines)
                case 4:
                    del lines[self.random.randrange(len(lines))]
                    text = "\n".join(lines)
                case 5 if self.random.random() < 0.02:
                    at = self.random.randrange(len(text) + 1)
                    text = text[:at] + self.random.choice("[{(,\"'") * _DEEP + text[at:]
                case _:
                    at = self.random.randrange(len(text) + 1)
                    text = text[:at] + self.random.choice(ODD_WORDS) + text[at:]
        return text.encode("utf-8", "surrogatepass")

    def of_tree(self, tree: Any) -> Any:
        """A tree with some nodes replaced, deleted, duplicated, renamed or swapped."""
        root = {"": tree}
        for _ in range(self._few()):
            places = list(_places(root))
            holder, key = self.random.choice(places)
            match self.random.randrange(8):
                case 0 if holder is not root:
                    del holder[key]
                case 1 if isinstance(holder, list):
                    holder.append(holder[key])
                case 1 if holder is not root:
                    holder[self.random.choice((f"{key}x", "", "round", "weights"))] = holder.pop(key)
                case 2:
                    other, at = self.random.choice(places)
                    if other is not root:
                        holder[key] = json.loads(json.dumps(other[at]))
                case 3:
                    holder[key] = [holder[key]]
                case 4 if isinstance(holder[key], int | float):
                    holder[key] = self.random.choice(
                        (-holder[key], holder[key] + 1, holder[key] * 1000, str(holder[key]))
                    )
                case _:
                    holder[key] = self.random.choice(ODD_VALUES)
        return root[""]

    def _few(self) -> int:
        return 1 + min(int(self.random.expovariate(1)), 6)

    def _of_json(self, content: bytes, name: str) -> bytes:
        return json.dumps(self.of_tree(json.loads(content))).encode()

    def _of_json_lines(self, content: bytes, name: str) -> bytes:
        trees = self.of_tree([json.loads(line) for line in content.splitlines()])
        return b"\n".join(json.dumps(tree).encode() for tree in trees)

    def _of_toml(self, content: bytes, name: str) -> bytes:
        return tomli_w.dumps(self.of_tree(tomllib.loads(content.decode()))).encode("utf-8", "surrogatepass")

    def _of_cells(self, content: bytes, name: str) -> bytes:
        rows = [line.split(",") for line in content.decode().split("\n")]
        rows = self.of_tree(rows)
        return "\n".join(",".join(map(str, row)) for row in rows).encode("utf-8", "surrogatepass")

    def _of_gzip(self, content: bytes, name: str) -> bytes:
        inner = name.removesuffix(".gz") if name.endswith(".gz") else "archive.tar"
        return gzip.compress(self.broken(gzip.decompress(content), inner), 1, mtime=0)

    def _of_zip(self, content: bytes, name: str) -> bytes:
        packed = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
        chosen = self.random.randrange(len(members))
        inside, held = members[chosen]
        match self.random.randrange(6):
            case 0:
                members[chosen] = (self.random.choice(("", "../up.npy", "/x.npy", "x.npy/", "a\\b.jpg", "y.npy")), held)
            case 1:
                members.append((inside, self.broken(held, inside)))
            case _:
                members[chosen] = (inside, self.broken(held, inside))
        with zipfile.ZipFile(packed, "w", self.random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for inside, held in members:
                archive.writestr(inside, held)
        return packed.getvalue()

    def _of_tar(self, content: bytes, name: str) -> bytes:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            members = [(info, archive.extractfile(info)) for info in archive]
            held = [(info, file.read() if file else b"") for info, file in members]
        info, _ = self.random.choice(held)
        match self.random.randrange(4):
            case 0:
                info.name = self.random.choice(("../up", "/abs", "", "a" * 300, "x\0y", "C:x"))
            case 1:
                info.type = self.random.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE))
                info.linkname = self.random.choice(("/etc/hostname", "..", "", info.name))
            case 2:
                info.pax_headers = {"size": self.random.choice(("-1", "x", "9" * 20)), "path": "../up"}
            case _:
                info.mode, info.mtime = self.random.choice((0, 0o7777)), self.random.choice((0, 2**33, 1.5))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
            for info, data in held:
                if info.isreg():
                    info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return packed.getvalue()

    def _of_safetensors(self, content: bytes, name: str) -> bytes:
        length = int.from_bytes(content[:8], "little")
        header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
        checked = header.get("__metadata__", {}).get("checked tree")
        if checked is not None and self.random.random() < 0.8:
            known, _, tree = checked.partition(" ")
            header["__metadata__"]["checked tree"] = f"{known} {json.dumps(self.of_tree(json.loads(tree)))}"
        elif self.random.random() < 0.3:
            data = self.of_bytes(data)
        else:
            header = self.of_tree(header)
        packed = json.dumps(header).encode()
        packed += b" " * (-len(packed) % 8)
        return len(packed).to_bytes(8, "little") + packed + data

    def _of_npy(self, content: bytes, name: str) -> bytes:
        length = int.from_bytes(content[8:10], "little")
        header = self.of_text(content[10 : 10 + length])
        return content[:8] + (len(header) % 2**16).to_bytes(2, "little") + header + content[10 + length :]

    def _of_png(self, content: bytes, name: str) -> bytes:
        """Breaks one chunk, with a correct length and checksum."""
        start, chunks = 8, []
        while start < len(content):
            length = int.from_bytes(content[start : start + 4], "big")
            chunks.append((content[start + 4 : start + 8], content[start + 8 : start + 8 + length]))
            start += 12 + length
        chosen = self.random.randrange(len(chunks))
        kind, data = chunks[chosen]
        if kind == b"IDAT" and self.random.random() < 0.5:
            data = zlib.compress(self.of_bytes(zlib.decompress(data)))
        elif self.random.random() < 0.1:
            kind = self.random.choice((b"tRNS", b"PLTE", b"zTXt", b"iCCP", b"acTL"))
        else:
            data = self.of_bytes(data)
        chunks[chosen] = (kind, data)
        return content[:8] + b"".join(
            len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
            for kind, data in chunks
        )


def _places(tree: Any) -> Any:
    """Every value in a tree, as the dict or list that holds it and its key or index."""
    keys = tree if isinstance(tree, dict) else range(len(tree))
    for key in list(keys):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])
