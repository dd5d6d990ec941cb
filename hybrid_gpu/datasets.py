"""Data sets, and readers of users' own files: the public door to ``hybrid_gpu.lab.datasets``."""

from hybrid_gpu.lab.datasets import (
    Benchmark,
    Dataset,
    GroundTruth,
    Split,
    augmented,
    benchmark_of,
    digits,
    fashion_mnist,
    load_array,
    load_folder,
    load_ground_truth,
    mnist,
    revisited,
    split_queries,
    warped,
    with_distractors,
)

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
