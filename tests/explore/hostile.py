"""A small collection whose keys and texts try to break out of the page."""

import numpy as np

import hybrid_gpu as hg

HOSTILE = [
    "<script>window.broken = 1</script>",
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    '"><svg onload=window.broken=1>',
    "'; window.broken = 1; //",
    "javascript:window.broken=1",
    "${window.broken = 1}",
    "\u202eright to left\u202c",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "line\u2028separator\u2029and\x00zero",
    "a" * 10_000,
    "__proto__",
    "constructor",
    "../../etc/passwd",
    "&lt;b&gt;&amp;",
    "\U0001f469\u200d\U0001f680 " * 40,
    "<!-- ",
    "]]>",
    " ",
    "http://192.0.2.1/leak.png",
]


def hostile_index():
    rng = np.random.default_rng(17)
    centers = rng.standard_normal((4, 12)) * 2
    vectors = centers[np.arange(60) % 4] + rng.standard_normal((60, 12))
    # Two far from all others: diffusion does not reach them.
    vectors[58:] = -50 * centers[0] + rng.standard_normal((2, 12)) * 30
    keys = HOSTILE + [f"key {number}" for number in range(len(HOSTILE), 60)]
    return hg.build_index(vectors, neighbors=5, alpha=0.9, keys=keys, backend="numpy"), vectors


def texts():
    return [f"{HOSTILE[number % len(HOSTILE)][:200]} text {number}" for number in range(60)]
