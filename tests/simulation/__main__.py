"""The command behind ``scripts/simulate``."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from tests.simulation.census import kinds
from tests.simulation.run import Result, simulate
from tests.simulation.scenario import Scenario, load, scenario, store
from tests.simulation.shrink import fails_as, shrink
from tests.simulation.stories import STORIES

SEEDS = 1000
Name = int | str
"""Of a history: its seed, or what happens in the story."""
OF_WHICH = ("seed", "case", "story")
OF_ONE = ("trace", "shrink")
OF_MANY = ("seeds", "first", "jobs", "stories", "census", "digests")


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds; 1 when any breaks a rule."""
    parser = argparse.ArgumentParser(
        prog="scripts/simulate", description="Random histories of the whole system in virtual time, checked by rules."
    )
    parser.add_argument("--seeds", type=int, metavar="N", help=f"how many ({SEEDS})")
    parser.add_argument("--first", type=int, metavar="SEED", help="the first of them (0)")
    parser.add_argument("--jobs", type=int, metavar="K", help="processes (one for each CPU)")
    parser.add_argument("--seed", type=int, metavar="S", help="only this one")
    parser.add_argument("--case", type=Path, metavar="FILE", help="a stored scenario in place of a seed's")
    parser.add_argument("--story", choices=STORIES, metavar="NAME", help="one that is told on purpose")
    parser.add_argument("--stories", action="store_true", default=None, help="all of these before the seeds")
    parser.add_argument("--trace", action="store_true", default=None, help="what happened in this one, line by line")
    parser.add_argument("--shrink", type=Path, metavar="FILE", help="store a shorter scenario that fails alike")
    parser.add_argument("--census", action="store_true", default=None, help="count what happened in how many histories")
    parser.add_argument("--digests", action="store_true", default=None, help="print the hash of every history")
    arguments = parser.parse_args(argv)
    story = _story(parser, arguments)
    wrong = [f"--{name}" for name in (OF_MANY if story else OF_ONE) if getattr(arguments, name) is not None]
    if wrong:
        parser.error(f"{', '.join(wrong)}: {'not with' if story else 'only with'} --seed, --case or --story")
    if story:
        return _one(story, arguments)
    count, jobs = (SEEDS if arguments.seeds is None else arguments.seeds), arguments.jobs
    jobs = os.cpu_count() or 1 if jobs is None else jobs
    if min(count, jobs) < 1:
        parser.error("--seeds and --jobs must be at least 1")
    first = arguments.first or 0
    return _many([*(STORIES if arguments.stories else ()), *range(first, first + count)], jobs, arguments)


def _story(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Scenario | None:
    """The one that is asked for; none when it is many."""
    asked = [f"--{name}" for name in OF_WHICH if getattr(arguments, name) is not None]
    if len(asked) > 1:
        parser.error(f"{' and '.join(asked)} are two histories; name one")
    if arguments.case is None:
        name = arguments.seed if arguments.story is None else arguments.story
        return None if name is None else _scenario(name)
    try:
        return load(arguments.case)
    except (OSError, msgspec.DecodeError) as error:
        parser.error(f"--case: {arguments.case}: {error.strerror if isinstance(error, OSError) else error}")


def _scenario(name: Name) -> Scenario:
    return scenario(name) if isinstance(name, int) else STORIES[name].scenario


def _one(story: Scenario, arguments: argparse.Namespace) -> int:
    result = simulate(story, verbose=bool(arguments.trace))
    print(*result.lines, sep="\n", end="\n" if result.lines else "")
    _report(arguments.story or story.seed, result)
    print(f"seed {story.seed}: {result.digest}, {result.seconds:.0f} s in {result.steps} steps")
    if arguments.shrink and result.broken:
        store(arguments.shrink, shrink(story, fails_as(story)))
    return 1 if result.broken else 0


def _many(names: Sequence[Name], jobs: int, arguments: argparse.Namespace) -> int:
    start, failed, counts, census = time.monotonic(), 0, Counter[str](), Counter[str]()
    for name, result in _results(names, jobs):
        failed += bool(result.broken)
        counts += result.counts
        census.update(set(kinds(_scenario(name), result.happened, result.counts)))
        _report(name, result)
        if arguments.digests:
            print(f"{name} {result.digest}", flush=True)
    if arguments.census:
        print(*(f"{count:6}  {what}" for what, count in sorted(census.items())), sep="\n")
    if not arguments.digests:
        seconds, stories = time.monotonic() - start, sum(isinstance(name, str) for name in names)
        print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
        run = f"{len(names) - stories} seeds" + (f" and {stories} stories" if stories else "")
        print(f"{run}, {failed} failed, {seconds:.0f} s ({len(names) / seconds:.1f} a second)")
    return 1 if failed else 0


def _results(names: Sequence[Name], jobs: int) -> Iterator[tuple[Name, Result]]:
    if jobs == 1:
        yield from map(_run, names)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_run, names, chunksize=4)


def _run(name: Name) -> tuple[Name, Result]:
    return name, simulate(_scenario(name))


def _report(name: Name, result: Result) -> None:
    for broken in result.broken:
        print(f"{'story' if isinstance(name, str) else 'seed'} {name}: {broken}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
