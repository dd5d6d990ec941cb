"""Re-identification: the first ranks and mAP of your own features, before and after diffusion.

    python examples/reidentification.py --folder FOLDER
    python examples/reidentification.py    # made-up people, seen by six cameras

The folder has six files: query_features.npy, query_ids.npy, query_cameras.npy, and gallery_...
The usual protocol: a query's own person by its own camera is taken out of the gallery; CMC at ranks
1, 5 and 10, and mAP, over what is left.
"""

import argparse
from pathlib import Path

import numpy as np

import hybrid_gpu as hg
from hybrid_gpu import evaluation


def made_up(people=150, pictures=12, cameras=6, dimensions=64):
    """Features of people that move from camera to camera, and look different in each."""
    rng = np.random.default_rng(11)
    ids, seen_by = (rng.integers(0, high, people * pictures) for high in (people, cameras))
    person, view = (
        rng.standard_normal((people, dimensions)),
        rng.standard_normal((cameras, dimensions)),
    )
    pose = rng.standard_normal((people, dimensions))
    turn = rng.uniform(-2, 2, (people * pictures, 1))  # people turn: a line of pictures, not a ball
    noise = 0.9 * rng.standard_normal((people * pictures, dimensions))
    features = person[ids] + turn * pose[ids] + 0.5 * view[seen_by] + noise
    query = rng.random(people * pictures) < 0.15
    return [(features[rows], ids[rows], seen_by[rows]) for rows in (query, ~query)]


def read(folder, part):
    """Features (n, d), ids (n,) and cameras (n,) of the queries or of the gallery."""
    files = [folder / f"{part}_{name}.npy" for name in ("features", "ids", "cameras")]
    return [np.load(file, allow_pickle=False) for file in files]


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--folder", type=Path, help="where your .npy files are")
folder = parser.parse_args().folder
parts = [read(folder, part) for part in ("query", "gallery")] if folder else made_up()
(queries, people, cameras), gallery = parts
features, gallery_people, gallery_cameras = gallery
pairs = zip(people, cameras, strict=True)
junk = [np.flatnonzero((gallery_people == p) & (gallery_cameras == c)) for p, c in pairs]

index = hg.build_index(features)
print(index)
print(f"{'method':<10}{'rank 1':>9}{'rank 5':>9}{'rank 10':>9}{'mAP':>9}   (%)")
for method in ("nn", "alpha-qe", "hybrid"):
    ids = index.search(queries, k=index.n, method=method, exclude=junk).ids
    curve = evaluation.cumulative_match(ids, gallery_people, people, at=(1, 5, 10), ignore=junk)
    precision = evaluation.mean_average_precision(ids, gallery_people, people, ignore=junk)
    figures = [*curve.values(), precision]
    print(f"{method:<10}" + "".join(f"{100 * value:>9.1f}" for value in figures))
