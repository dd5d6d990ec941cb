"""The figures that the paper reports, to be shown beside the measured ones.

All of them are from Iscen, Avrithis, Tolias, Furon and Chum, *Hybrid Diffusion: Spectral-Temporal
Graph Filtering for Manifold Ranking*, 2018: GeM descriptors, MATLAB on 4 cores at 2.6 GHz, one
query at a time, eigenvectors in double precision.
"""

from __future__ import annotations

from collections.abc import Mapping

# Figure 2, ROxford + R1M, Medium: steps -> (mAP in percent, seconds per query).
FIGURE_2: Mapping[str, Mapping[int, tuple[float, float]]] = {
    "temporal": {
        3: (54.97, 0.5417),
        5: (56.81, 0.7661),
        10: (59.78, 1.4603),
        20: (61.58, 2.8477),
    },
    "hybrid-paper": {
        0: (29.38, 0.1248),
        2: (59.86, 1.1957),
        3: (62.74, 1.4895),
        5: (63.45, 2.1902),
        10: (62.29, 3.8840),
        20: (62.05, 7.4030),
    },
    "shybrid": {
        0: (28.63, 0.0319),
        2: (59.20, 0.4908),
        3: (62.04, 0.6336),
        5: (62.64, 0.9210),
        10: (61.36, 1.6859),
        20: (61.09, 3.1899),
    },
    "fsr": {0: (22.61, 1.3)},
    "fsrw": {0: (44.64, 1.3)},
}

# Table 1, ROxford + R1M, Medium: method -> (mAP in percent, seconds per query, MB).
TABLE_1: Mapping[str, tuple[float, float, float]] = {
    "temporal": (61.6, 2.8, 205),
    "truncated": (59.0, 1.0, 205),
    "fsrw": (42.1, 1.3, 35_606),
    "shybrid": (62.6, 0.9, 264),
}

# Table 2: benchmark -> method -> mAP in percent, (Medium, Hard).
TABLE_2: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "ROxford": {
        "nn": (64.7, 38.5),
        "alpha-qe": (67.2, 40.8),
        "temporal": (69.9, 40.4),
        "fsr": (70.4, 42.0),
        "fsrw": (70.7, 42.2),
        "shybrid": (70.5, 40.3),
    },
    "ROxford + R1M": {
        "nn": (45.2, 19.9),
        "alpha-qe": (49.0, 24.2),
        "temporal": (61.6, 33.2),
        "truncated": (59.0, 31.4),
        "fsr": (22.6, 5.8),
        "fsrw": (42.1, 18.8),
        "shybrid": (62.6, 34.4),
    },
    "RParis": {
        "nn": (77.2, 56.3),
        "alpha-qe": (80.7, 61.8),
        "temporal": (88.9, 78.5),
        "fsr": (88.6, 77.9),
        "fsrw": (88.7, 78.0),
        "shybrid": (88.7, 78.1),
    },
    "RParis + R1M": {
        "nn": (52.3, 24.7),
        "alpha-qe": (58.0, 31.0),
        "temporal": (85.0, 71.6),
        "truncated": (79.7, 65.2),
        "fsr": (66.6, 40.2),
        "fsrw": (77.4, 59.7),
        "shybrid": (82.0, 66.8),
    },
}


def counterpart(name: str, distractors: int) -> str | None:
    """The paper's name for a benchmark; None if the paper does not have it.

    Parameters
    ----------
    name
        The user's name of the benchmark, in any spelling.
    distractors
        Their number; with any, the benchmark is taken for the one with a million of them.
    """
    plain = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    for benchmark, signs in (("ROxford", ("roxf", "oxford")), ("RParis", ("rpar", "paris"))):
        if any(sign in plain for sign in signs):
            return f"{benchmark} + R1M" if distractors else benchmark
    return None
