"""Runs of experiments whose figures are made up, for tests of what is drawn from them."""

from dataclasses import replace

import numpy as np

import hybrid_gpu as hg
from hybrid_gpu.index.build import default_groups
from hybrid_gpu.lab.comparison import Measurement, Trial
from hybrid_gpu.lab.experiments import Run
from hybrid_gpu.lab.trials import ExperimentSettings, trials_of

SETTINGS = ExperimentSettings(
    rank=6,
    spectral_rank=9,
    ranks=(3, 6),
    steps=(1, 5),
    sparsities=(0.5, 0.9),
    shortlists=(0.1, 0.2),
)
QUALITY = {
    "classes": ("mAP", "P@100"),
    "setups": tuple(
        f"{what} {setup}"
        for what in ("mAP", "mP@1", "mP@5", "mP@10")
        for setup in ("easy", "medium", "hard")
    ),
}


def made_up(trial, number, names):
    """Every value of a measurement follows from its number."""
    return Measurement(
        trial=trial,
        quality={name: number + place / 100 for place, name in enumerate(names)},
        agreement=number / 1000,
        milliseconds=3.0 * number,
        diffusion=2.0 * number,
        alone=10.0 * number,
        bytes=1_000_000 * number,
    )


def run_of(name="clouds", distractors=0, protocol="classes"):
    rng = np.random.default_rng(17)
    vectors = rng.standard_normal((300, 5))
    index = hg.build_index(vectors, neighbors=8, basis="none", backend="numpy")
    groups = default_groups(index.state.graph)
    trials = dict.fromkeys(one for part in trials_of(SETTINGS, index).values() for one in part)
    names = QUALITY[protocol]
    exact = replace(made_up(Trial("temporal", rtol=1e-10), 500, names), alone=None)
    return Run(
        benchmark={
            "name": name,
            "items": 300,
            "distractors": distractors,
            "queries": 7,
            "dimensions": 5,
            "fingerprint": "f",
        },
        settings=SETTINGS,
        machine={},
        backend="numpy",
        eigenvalues=tuple(np.linspace(1, 0.2, 9)),
        groups=groups,
        exact=exact,
        measurements={
            trial: made_up(trial, number, names) for number, trial in enumerate(trials, start=1)
        },
    )


def named(sections, name):
    (one,) = [part for part in sections if part.name == name]
    return one
