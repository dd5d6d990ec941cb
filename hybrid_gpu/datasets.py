"""Data to rank: the digits that come with the package, public sets, and the user's own files."""

from hybrid_gpu.files.array_files import load_array
from hybrid_gpu.files.ground_truth import GroundTruth, load_ground_truth
from hybrid_gpu.lab.augmentation import augmented
from hybrid_gpu.lab.benchmark import (
    Benchmark,
    Dataset,
    Split,
    benchmark_of,
    split_queries,
    with_distractors,
)
from hybrid_gpu.lab.benchmark_files import load_folder, revisited
from hybrid_gpu.lab.public_sets import digits, fashion_mnist, mnist
from hybrid_gpu.lab.warps import warped

__all__ = [
    "Benchmark",
    "Dataset",
    "GroundTruth",
    "Split",
    "augmented",
    "benchmark_of",
    "digits",
    "fashion_mnist",
    "load_array",
    "load_folder",
    "load_ground_truth",
    "mnist",
    "revisited",
    "split_queries",
    "warped",
    "with_distractors",
]
