"""Memory of the host that this process may still take: what is free, and what it is allowed.

A container, a batch system or ``ulimit`` may allow less than the machine has; to take more ends the
process. On Linux the limits are read from ``/proc`` and ``/sys``, at every call, because others
take memory too. Written after the documentation of cgroups version 1 and 2; only the first was
tried on a real system.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePosixPath

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_FALLBACK_BYTES = 2 * 1024**3
# Version 1 writes its highest number where there is no limit.
_NO_LIMIT = 1 << 60
# Names of a control group's limits, of what is taken, and of the cache in it that gives way.
_GROUP_FILES = {
    "cgroup2": (("memory.max", "memory.high"), "memory.current", "inactive_file"),
    "cgroup": (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
}


def available_host_bytes(root: str = "") -> int:
    """Bytes that this process may still allocate: the least of what the system tells.

    Parameters
    ----------
    root
        The folder that ``/proc`` and ``/sys`` are in.
    """
    rooms = [_machine_room(root), *_group_rooms(root), *_process_rooms(root)]
    return max(0, min(room for room in rooms if room is not None))


def address_room(root: str = "") -> int | None:
    """Bytes of addresses, used or not, that ``ulimit`` leaves to this process; None: no limit."""
    return min(_process_rooms(root), default=None)


def _machine_room(root: str) -> int:
    for line in _text(f"{root}/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    try:
        # macOS tells no better: count on half of the memory.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return _FALLBACK_BYTES


def _group_rooms(root: str) -> Iterator[int]:
    """What each control group that this process is in leaves to it."""
    own = _text(f"{root}/proc/self/cgroup")
    for version, folder in _group_folders(own, _mounts(root)):
        limits, taken, cache = _GROUP_FILES[version]
        place = f"{root}{folder}"
        bounds = [_number(_text(f"{place}/{name}")) for name in limits]
        known = [bound for bound in bounds if bound is not None and bound < _NO_LIMIT]
        used = _number(_text(f"{place}/{taken}")) if known else None
        if used is not None:
            yield min(known) - used + _cached(_text(f"{place}/memory.stat"), cache)


@lru_cache(maxsize=4)
def _mounts(root: str) -> str:
    # The one file that takes long to read, and hardly ever changes while a process runs.
    return _text(f"{root}/proc/self/mountinfo")


@lru_cache(maxsize=4)
def _group_folders(own: str, mounts: str) -> tuple[tuple[str, str], ...]:
    """Version and folder of every control group of memory, from the process's own one upwards.

    Parameters
    ----------
    own
        ``/proc/self/cgroup``: lines of ``number:controllers:path``.
    mounts
        ``/proc/self/mountinfo``: what is mounted where.
    """
    paths = {}
    for line in own.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            paths["cgroup2" if number == "0" else "cgroup"] = PurePosixPath(path)
    found = []
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        kind, options = right.split(" ")[0], right.split(" ")[-1].split(",")
        if kind not in paths or (kind == "cgroup" and "memory" not in options):
            continue
        shown, point = (PurePosixPath(field) for field in left.split(" ")[3:5])
        # Inside a container, the mount may show only a part of the tree, and our path all of it.
        inside = paths[kind].is_relative_to(shown) and ".." not in paths[kind].parts
        folder = point / paths[kind].relative_to(shown) if inside else point
        while True:
            found.append((kind, str(folder)))
            if folder == point or folder == folder.parent:
                break
            folder = folder.parent
    return tuple(found)


def _cached(statistics: str, name: str) -> int:
    """Bytes of file cache that the system drops when they are needed."""
    for line in statistics.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _number(value) or 0
    return 0


def _process_rooms(root: str) -> Iterator[int]:
    """What ``ulimit -v`` and ``ulimit -d`` leave."""
    if resource is None:
        return
    # In pages: all of the address space, and sixth, data and stacks.
    sizes = _text(f"{root}/proc/self/statm").split()
    if len(sizes) < 6:
        return
    page = resource.getpagesize()
    for limit, pages in ((resource.RLIMIT_AS, sizes[0]), (resource.RLIMIT_DATA, sizes[5])):
        soft = resource.getrlimit(limit)[0]
        if soft != resource.RLIM_INFINITY:
            yield soft - int(pages) * page


def _number(text: str) -> int | None:
    """A count of bytes; None for ``max``, or where there is none."""
    text = text.strip()
    return int(text) if text.isdecimal() else None


def _text(file: str) -> str:
    # Every search asks: a plain read takes a fifth of the time of one through a text stream.
    try:
        opened = os.open(file, os.O_RDONLY)
    except OSError:
        return ""
    try:
        parts = []
        while part := os.read(opened, 1 << 16):
            parts.append(part)
        return b"".join(parts).decode("utf-8", errors="replace")
    except OSError:
        return ""
    finally:
        os.close(opened)
