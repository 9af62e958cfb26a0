"""What /proc says about processes."""

import re
from pathlib import Path

_PROC = Path("/proc")


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none.

    A pid and its start time together name one process for as long as the machine is up.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def descendants(root: int, pattern: re.Pattern[str]) -> list[tuple[int, str]]:
    """Pid and title of every descendant of ``root`` whose title matches; walks all of /proc, so call it in a thread."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, unseen = [], [root]
    while unseen:
        for child in children.get(unseen.pop(), ()):
            unseen.append(child)
            if pattern.search(title := _title(child)):
                found.append((child, title))
    return found


def group_runs(group: int) -> bool:
    """A member of the process group has not ended; walks all of /proc, so call it in a thread."""
    stats = (_stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdecimal())
    return any(fields and fields[0] not in "ZX" and int(fields[2]) == group for fields in stats)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on; the second may contain anything, also what is no text."""
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:  # it ended meanwhile
        return None


def _title(pid: int) -> str:
    try:
        line = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:  # it ended meanwhile
        return ""
    return line.replace(b"\0", b" ").decode(errors="replace").strip()
