"""Memory of the host: made-up systems, each a folder with the files that Linux would show."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from hybrid_gpu.backends.host_memory import available_host_bytes

MB = 1024**2
MACHINE = {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8192000 kB\n"}
V2 = {
    **MACHINE,
    "proc/self/cgroup": "0::/user/job\n",
    "proc/self/mountinfo": "25 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
}
V1 = {
    **MACHINE,
    "proc/self/cgroup": "9:name=systemd:/x\n5:cpu,memory:/user/job\n0::/\n",
    "proc/self/mountinfo": (
        "31 2 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "35 2 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,cpu,memory\n"
        "41 2 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    ),
}


def room(tmp_path, files):
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(text))
    return available_host_bytes(str(tmp_path))


def group(folder, limit, used, cache=0, high="max"):
    place = f"sys/fs/cgroup/{folder}"
    return {
        f"{place}/memory.max": limit,
        f"{place}/memory.high": high,
        f"{place}/memory.current": f"{used}\n",
        f"{place}/memory.stat": f"anon {used - cache}\ninactive_file {cache}\nactive_file 9\n",
    }


def old_group(folder, limit, used, cache=0):
    place = f"sys/fs/cgroup/memory/{folder}"
    return {
        f"{place}/memory.limit_in_bytes": f"{limit}\n",
        f"{place}/memory.usage_in_bytes": f"{used}\n",
        f"{place}/memory.stat": f"inactive_file 3\ntotal_inactive_file {cache}\n",
    }


def test_a_machine_without_limits_has_what_is_free(tmp_path):
    assert room(tmp_path, MACHINE) == 8192000 * 1024


def test_a_group_leaves_its_limit_less_what_is_taken_but_not_the_cache(tmp_path):
    files = {**V2, **group("user/job", 700 * MB, 300 * MB, cache=100 * MB)}
    assert room(tmp_path, files) == 500 * MB


def test_a_group_of_version_1_too(tmp_path):
    files = {**V1, **old_group("user/job", 700 * MB, 300 * MB, cache=100 * MB)}
    assert room(tmp_path, files) == 500 * MB


@pytest.mark.parametrize("version", ["cgroup2", "cgroup"])
def test_the_tightest_group_on_the_way_up_counts(tmp_path, version):
    make, files = (group, V2) if version == "cgroup2" else (old_group, V1)
    files = {**files, **make("user/job", 700 * MB, 100 * MB), **make("user", 400 * MB, 200 * MB)}
    assert room(tmp_path, files) == 200 * MB
    # The groups of others are not ours.
    assert room(tmp_path, {**files, **make("other", 20 * MB, 10 * MB)}) == 200 * MB


def test_the_bound_above_which_the_system_slows_a_group_down_counts_too(tmp_path):
    files = {**V2, **group("user/job", "max", 100 * MB, high=150 * MB)}
    assert room(tmp_path, files) == 50 * MB


def test_no_limit_is_no_limit(tmp_path):
    assert room(tmp_path, {**V2, **group("user/job", "max", 5 * MB)}) == 8192000 * 1024
    top = 9223372036854771712
    assert room(tmp_path, {**V1, **old_group("user/job", top, 5 * MB)}) == 8192000 * 1024


def test_more_taken_than_allowed_is_nothing_left(tmp_path):
    assert room(tmp_path, {**V2, **group("user/job", 100 * MB, 130 * MB)}) == 0


@pytest.mark.parametrize("shown", ["/docker/abc", "/elsewhere"])
def test_inside_a_container_the_mount_shows_a_part_of_the_tree(tmp_path, shown):
    mount = f"25 1 0:22 {shown} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    files = {**V2, "proc/self/cgroup": "0::/docker/abc\n", "proc/self/mountinfo": mount}
    assert room(tmp_path, {**files, **group(".", 64 * MB, 4 * MB)}) == 60 * MB


def test_files_that_cannot_be_read_are_no_limit(tmp_path):
    files = {**V2, "sys/fs/cgroup/user/job/memory.max": "gibberish"}
    assert room(tmp_path, files) == 8192000 * 1024
    assert room(tmp_path / "empty", {}) > 0


@pytest.mark.parametrize(("limit", "pages"), [("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)])
def test_ulimit_leaves_what_is_not_taken(tmp_path, monkeypatch, limit, pages):
    taken = ["1000"] * 7
    taken[pages] = "2000"
    bounds = {getattr(resource, limit): (300 * MB, 300 * MB)}
    free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda which: bounds.get(which, free))
    left = room(tmp_path, {**MACHINE, "proc/self/statm": " ".join(taken)})
    assert left == 300 * MB - 2000 * resource.getpagesize()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_a_process_with_a_ulimit_searches_in_smaller_batches():
    script = """
import resource
import numpy as np
import scipy.sparse as sparse
import hybrid_gpu as hg
path = sparse.diags_array([np.ones(19_999)] * 2, offsets=[-1, 1]).tocsr()
index = hg.build_index_from_graph(path, backend="numpy")
free = index.search_items(np.arange(128), k=10, steps=3)
page = resource.getpagesize()
taken = int(open("/proc/self/statm").read().split()[0]) * page
resource.setrlimit(resource.RLIMIT_AS, (taken + 60 * 2**20,) * 2)
bound = index.search_items(np.arange(128), k=10, steps=3)
assert free.report.batch == 128 and bound.report.batch < 64, bound.report.batch
np.testing.assert_allclose(bound.scores, free.scores, rtol=1e-3)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
