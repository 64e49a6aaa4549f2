"""Datasets: tables, pictures, arrays, texts, archives."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from playerfl.data.download.directory import use_data_directory
from reader import written


def idx(content: np.ndarray[Any, Any]) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in content.shape)
    return bytes([0, 0, 8, content.ndim]) + sizes + content.astype(np.uint8).tobytes()


def fashion(folder: Path) -> None:
    numbers = np.arange(40)
    pictures = (numbers[:, None, None] + np.zeros((40, 28, 28))) % 251
    home = folder / "fashion_mnist"
    written(
        {
            "train-images-idx3-ubyte.gz": gzip.compress(idx(pictures), mtime=0),
            "train-labels-idx1-ubyte": idx(numbers % 10),
        },
        home,
    )


def read_fashion(folder: Path) -> object:
    from playerfl.data.readers.idx import read_labelled

    return read_labelled(folder / "fashion_mnist", "train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def cifar(folder: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 255, (10, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(10)
    written(
        {"data_batch_1.bin": rows.tobytes(), "data_batch_2.bin.gz": gzip.compress(rows.tobytes(), mtime=0)},
        folder / "cifar10",
    )


def read_task(name: str, folder: Path, **options: Any) -> object:
    from playerfl.tasks import TASKS

    task = TASKS[name]
    with use_data_directory(folder):
        return task.load_sites(task.options(**options))


def read_cifar_files(folder: Path) -> object:
    from playerfl.data.readers.cifar import read_cifar10

    files = sorted((folder / "cifar10").iterdir())
    # If there are none, the task says so before it reads.
    return read_cifar10(files) if files else None


def heart(folder: Path) -> None:
    from playerfl.tasks.bundled.heart import HOSPITALS

    rows = [f"{40 + i}.0,1.0,{1 + i % 4}.0,145.0,233.0,0.0,2.0,150.0,0.0,2.3,3.0,?,6.0,{i % 5}" for i in range(15)]
    written({f"heart/{name}": "\n".join([*rows, rows[0].replace("145.0", "?")]) for name in HOSPITALS.values()}, folder)


def tweets(folder: Path) -> None:
    from playerfl.tasks.bundled.tweets import AIRLINES, SENTIMENTS

    rows = ["tweet_id,airline_sentiment,airline,text"]
    for number in range(5):
        rows += [
            f'{number},{list(SENTIMENTS)[number % 3]},{airline},"@{airline} flight {number}, ""late"" é"'
            for airline in AIRLINES
        ]
    written({"airline_tweets/Tweets.csv": "\n".join(rows)}, folder)


def sent140(folder: Path) -> None:
    rows = [f'"{4 * (i % 2)}","{i}","Mon Apr 06","NO_QUERY","user{i % 3}","text {i} of it"' for i in range(18)]
    written(
        {"sent140/training.1600000.processed.noemoticon.csv.gz": gzip.compress("\n".join(rows).encode(), mtime=0)},
        folder,
    )


def mimic(folder: Path) -> None:
    from playerfl.tasks.bundled.mimic3 import GROUP_WORDS

    admissions = ["SUBJECT_ID,HADM_ID,ADMITTIME,ADMISSION_TYPE,DIAGNOSIS,HOSPITAL_EXPIRE_FLAG"]
    notes = ["HADM_ID,CHARTTIME,CATEGORY,TEXT"]
    words = [group[0] for group in GROUP_WORDS.values()]
    for i in range(12 * len(words)):
        admissions.append(f"{i},{100 + i},2101-10-20 19:08:00,EMERGENCY,{words[i % len(words)]},{i // 4 % 2}")
        notes.append(f'{100 + i},2101-10-20 20:00:00,Physician ,"first line\nsecond line {i}"')
    written({"mimic3/ADMISSIONS.csv": "\n".join(admissions), "mimic3/NOTEEVENTS.csv": "\n".join(notes)}, folder)


def picture(form: str, number: int = 0, size: int = 9) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 255, (size, size + 2, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, form)
    return content.getvalue()


def pictures(folder: Path) -> None:
    written({"a.png": picture("PNG"), "b.jpg": picture("JPEG")}, folder)


def read_pictures(folder: Path) -> object:
    from playerfl.data.readers.pictures import read_picture, read_picture_file

    return [read_picture(read_picture_file(file, file.name), file.name, 16) for file in sorted(folder.iterdir())]


def isic(folder: Path) -> None:
    kinds = ("bcc", "bkl", "mel", "nv")
    rows = [f"pic{i},lesion{i},{kinds[i % 4]},centre{i % 2}" for i in range(16)]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        for i in range(16):
            zipped.writestr(f"part/pic{i}.jpg", picture("JPEG", i))
    written(
        {
            "ham10000/fed_ham10000_labels.csv": "\n".join(["image_id,lesion_id,dx,dataset", *rows]),
            "ham10000/ham10000_64x64_jpg.zip": packed.getvalue(),
        },
        folder,
    )


def picture_folders(folder: Path) -> None:
    written(
        {
            f"{site}/{kind}/{i}.{'png' if i % 2 else 'jpg'}": picture("PNG" if i % 2 else "JPEG", i)
            for site in ("north", "south")
            for kind in ("cat", "dog")
            for i in range(4)
        },
        folder,
    )


def read_folder(folder: Path, **options: Any) -> object:
    from playerfl.tasks.folder import FolderOptions, folder_task

    chosen = FolderOptions(**options)
    task = folder_task(folder).for_options(chosen)
    return task.load_sites(chosen), task.build_model(chosen)


def site_csv(folder: Path) -> None:
    for site, ending in (("north", ".csv"), ("south", ".csv.gz")):
        random = Random(site)
        rows = ["age,dose,ward,smoker,outcome"]
        rows += [
            f"{random.gauss(60, 9):.2f},{random.randrange(5)},{random.choice(('heart', 'lung'))},"
            f"{random.choice(('True', 'False'))},{random.choice(('ill', 'well'))}"
            for _ in range(15)
        ]
        text = "\n".join(rows).encode()
        (folder / f"{site}{ending}").write_bytes(gzip.compress(text, mtime=0) if ending.endswith("gz") else text)


def site_parquet(folder: Path) -> None:
    import pandas as pd

    for number, site in enumerate(("north", "south")):
        rng = np.random.default_rng(number)
        frame = pd.DataFrame({"age": rng.normal(size=15), "ward": rng.choice(["x", "z"], 15), "y": np.arange(15) % 2})
        frame.to_parquet(folder / f"{site}.parquet")


def site_npz(folder: Path) -> None:
    for number, site in enumerate(("north", "south")):
        rng = np.random.default_rng(number)
        np.savez(folder / f"{site}.npz", x=rng.normal(size=(15, 3)), y=np.arange(15) % 2)


def hub(folder: Path) -> None:
    import pandas as pd

    rows = [{"image": {"bytes": picture("PNG", i, 28), "path": f"{i}.png"}, "label": i % 10} for i in range(30)]
    (folder / "fashion_mnist").mkdir()
    pd.DataFrame(rows).to_parquet(folder / "fashion_mnist" / "train.parquet")


def read_hub(folder: Path) -> object:
    from playerfl.data.readers.hub_tables import hub_pictures

    return hub_pictures(folder / "fashion_mnist" / "train.parquet", "image", "label", 10, 28, 100)


def tokenizers(folder: Path) -> None:
    words = ["[UNK]", "[PAD]", "flight", "late", "##ly", "the", "a", "b", "##b"]
    from playerfl.data.readers.text import _bert_tokenizer

    written(
        {"vocab.txt": "\n".join(words), "tokenizer.json": _bert_tokenizer("\n".join(words)).to_str()},
        folder,
    )


def read_tokenizers(folder: Path) -> object:
    from playerfl.data.readers.text import WordPieces

    return [WordPieces(folder / name).encode(["the late flight", ""], 6) for name in ("vocab.txt", "tokenizer.json")]


def packed(folder: Path) -> None:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as into:
        for name in ("in/a.txt", "in/b.txt", "c.txt"):
            into.writestr(name, name * 20)
    with tarfile.open(fileobj=tarred, mode="w:gz") as into_tar:
        for name in ("in/a.txt", "in/b.txt", "c.txt"):
            info = tarfile.TarInfo(name)
            info.size = 20
            into_tar.addfile(info, io.BytesIO(b"x" * 20))
    written({"a.zip": zipped.getvalue(), "b.tgz": tarred.getvalue()}, folder)


def unpack_all(folder: Path) -> None:
    from playerfl.data.download.unpack import unpack

    out = folder / "out"
    out.mkdir(exist_ok=True)
    for name in ("a.zip", "b.tgz"):
        unpack(folder / name, out, ["in/a.txt", "in/b.txt"], largest=10**6)
