"""Every dataset with files: what it is, where its files are looked for, and where to get them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from playerfl.data.download.directory import data_directory
from playerfl.errors import DataError, one_of

Layout = tuple[str, ...]
"""Patterns that must all match a file; `|` separates alternatives."""

HUB_LAYOUT: Layout = ("train.parquet",)
_ARCHIVE_BY_HAND = (
    "download {archive} from {page} into {folder} and run 'playerfl data fetch {name}', which checks and unpacks it"
)


@dataclass(frozen=True)
class RemoteFile:
    """A file at its official address, pinned by size and SHA-256."""

    path: str
    """Its name in the dataset's folder."""
    url: str
    sha256: str
    size: int
    members: tuple[str, ...] = ()
    """For an archive: the files to unpack from it, after which it is deleted."""

    def results(self, folder: Path) -> list[Path]:
        """The files in the folder after fetching this one."""
        names = [PurePosixPath(member).name for member in self.members] or [self.path]
        return [folder / name for name in names]


@dataclass(frozen=True)
class Source:
    """Where a dataset is stored and how to get it."""

    name: str
    about: str
    licence: str
    page: str
    folder: str
    """Its folder in the data directory."""
    layouts: tuple[Layout, ...]
    """The dataset is present if its folder has one of these."""
    by_hand: str = _ARCHIVE_BY_HAND
    """Instructions for getting it without `playerfl data fetch`."""
    files: tuple[RemoteFile, ...] = ()
    other_places: tuple[Path, ...] = ()
    hub: str | None = None
    """Its name on the Hugging Face hub, if there is a parquet copy."""

    @property
    def home(self) -> Path:
        """Its folder in the data directory, whether that exists or not."""
        return data_directory() / self.folder

    @property
    def instructions(self) -> str:
        archive = self.files[0].path if self.files else None
        return self.by_hand.format(name=self.name, page=self.page, archive=archive, folder=self.home)

    @property
    def commands(self) -> list[str]:
        """The commands that fetch it."""
        command = f"playerfl data fetch {self.name}"
        return [command] * bool(self.files) + [f"{command} --hub"] * bool(self.hub)

    def place(self) -> Path | None:
        """The first folder that has the dataset: in the data directory, then in other places.

        A copy from the hub comes last, whichever folder it is in.
        """
        places = (self.home, *self.other_places)
        for layouts in (self.layouts, (HUB_LAYOUT,) if self.hub else ()):
            for place in places:
                if any(_has(place, layout) for layout in layouts):
                    return place
        return None


def _has(folder: Path, layout: Layout) -> bool:
    return all(
        any(path.is_file() for pattern in patterns.split("|") for path in folder.glob(pattern)) for patterns in layout
    )


def source_of(name: str) -> Source:
    if name not in SOURCES:
        raise DataError(one_of(name, SOURCES, "dataset"))
    return SOURCES[name]


def folder_of(name: str) -> Path:
    """The folder that has a dataset; otherwise an error that says how to get it."""
    source = source_of(name)
    place = source.place()
    if place is None:
        looked = " nor in ".join(str(folder) for folder in (source.home, *source.other_places))
        ways = [*source.commands, f"by hand: {source.instructions}"]
        raise DataError(f"dataset {name!r} is not in {looked}; {', or '.join(ways)}")
    return place


def _or_gz(*names: str) -> Layout:
    return tuple(f"{name}|{name}.gz" for name in names)


def _files(url: str, *pinned: tuple[str, str, int]) -> tuple[RemoteFile, ...]:
    """Files at addresses that differ in the {} of `url`: what to put there, SHA-256 and size of each."""
    return tuple(
        RemoteFile(PurePosixPath(address := url.format(part)).name, address, sha256, size)
        for part, sha256, size in pinned
    )


# The SHA-256 of FashionMNIST, EMNIST, CIFAR-10 and Sentiment140 are those of TensorFlow Datasets (url_checksums,
# checksums.tsv); those of UCI's files are FLamby's and others'.
_ALL = (
    Source(
        name="fashion_mnist",
        about="70,000 images of clothes, 28x28, 10 classes",
        licence="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
        folder="fashion-mnist",
        layouts=(_or_gz("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),),
        by_hand="download the four .gz files in data/fashion of {page} into {folder}, or install Debian's package "
        "dataset-fashion-mnist",
        files=_files(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{}.gz",
            ("train-images-idx3-ubyte", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
            ("train-labels-idx1-ubyte", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
            ("t10k-images-idx3-ubyte", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
            ("t10k-labels-idx1-ubyte", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        ),
        other_places=(Path("/usr/share/datasets/fashion-mnist"),),
        hub="zalando-datasets/fashion_mnist",
    ),
    Source(
        name="emnist",
        about="814,255 handwritten letters and digits, 28x28, 62 classes (EMNIST by class)",
        licence="none stated; derived from NIST Special Database 19",
        page="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        folder="emnist",
        layouts=tuple(
            _or_gz(f"emnist-byclass-{part}-images-idx3-ubyte", f"emnist-byclass-{part}-labels-idx1-ubyte")
            for part in ("train", "test")
        ),
        files=(
            RemoteFile(
                "gzip.zip",
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
                561_753_746,
                members=(
                    *(
                        f"gzip/emnist-byclass-{part}-{kind}-ubyte.gz"
                        for part in ("train", "test")
                        for kind in ("images-idx3", "labels-idx1")
                    ),
                    "gzip/emnist-byclass-mapping.txt",
                ),
            ),
        ),
    ),
    Source(
        name="cifar10",
        about="60,000 colour images, 32x32, 10 classes",
        licence="none stated; cite Krizhevsky 2009",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        folder="cifar10",
        layouts=(_or_gz("data_batch*.bin"), _or_gz("cifar-10-batches-bin/data_batch*.bin")),
        files=(
            RemoteFile(
                "cifar-10-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
                members=(
                    *(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
                    "cifar-10-batches-bin/test_batch.bin",
                    "cifar-10-batches-bin/batches.meta.txt",
                ),
            ),
        ),
        hub="uoft-cs/cifar10",
    ),
    Source(
        name="isic2019",
        about="dermoscopic images from several hospitals (Fed-ISIC 2019, or HAM10000)",
        licence="CC BY-NC 4.0",
        page="https://challenge.isic-archive.com/data/#2019",
        folder="ham10000",
        layouts=(
            ("fed_ham10000_labels.csv", "ham10000_64x64_jpg.zip"),
            ("fed_ham10000_labels.csv|HAM10000_metadata.csv", "*/*.jpg"),
            ("train_test_split.csv", "ISIC_2019_Training_Input_preprocessed/*.jpg"),
        ),
        by_hand="put HAM10000_metadata.csv and folders of HAM10000's images into {folder}; or make Fed-ISIC 2019 "
        "with FLamby (https://github.com/owkin/FLamby) and put its folder "
        "ISIC_2019_Training_Input_preprocessed and its table train_test_split, named train_test_split.csv, into "
        "{folder}",
        hub="flwrlabs/fed-isic2019",
    ),
    Source(
        name="heart",
        about="920 patients from four hospitals, 13 measurements, 5 grades of heart disease",
        licence="CC BY 4.0",
        page="https://archive.ics.uci.edu/dataset/45/heart+disease",
        folder="heart",
        layouts=(tuple(f"processed.{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va")),),
        by_hand="download the zip at {page} and put its four files processed.*.data into {folder}",
        files=_files(
            "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/processed.{}.data",
            ("cleveland", "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8", 18_461),
            ("hungarian", "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796", 10_263),
            ("switzerland", "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314", 4_109),
            ("va", "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f", 6_737),
        ),
    ),
    Source(
        name="sent140",
        about="1,600,000 tweets by 659,774 users, positive or negative (Sentiment140)",
        licence="none stated; cite Go, Bhayani and Huang 2009",
        page="http://help.sentiment140.com/for-students",
        folder="sent140",
        layouts=(_or_gz("training.1600000.processed.noemoticon.csv"), _or_gz("testdata.manual.2009.06.14.csv")),
        files=(
            RemoteFile(
                "trainingandtestdata.zip",
                "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
                "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
                81_363_704,
                members=("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv"),
            ),
        ),
        hub="stanfordnlp/sentiment140",
    ),
    Source(
        name="mimic3",
        about="hospital admissions and clinical notes (MIMIC-III 1.4)",
        licence="PhysioNet Credentialed Health Data License",
        page="https://physionet.org/content/mimiciii/1.4/",
        folder="mimic3",
        layouts=(_or_gz("ADMISSIONS.csv", "NOTEEVENTS.csv"),),
        by_hand="become a credentialed user at {page} and put ADMISSIONS.csv.gz and NOTEEVENTS.csv.gz into {folder}",
    ),
    Source(
        name="tweets",
        about="14,640 labelled tweets about six airlines",
        licence="CC BY-NC-SA 4.0",
        page="https://www.kaggle.com/datasets/crowdflower/twitter-airline-sentiment",
        folder="airline_tweets",
        layouts=(_or_gz("Tweets.csv"),),
        by_hand="download Tweets.csv, with a Kaggle account, from {page} into {folder}",
    ),
)

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
