"""The command behind ``scripts/simulate``."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.census import kinds
from tests.simulation.run import Result, simulate
from tests.simulation.scenario import Scenario, load, scenario, store
from tests.simulation.shrink import fails_as, shrink


def main() -> int:
    """Run seeds; 1 when any breaks a rule."""
    parser = argparse.ArgumentParser(
        prog="scripts/simulate", description="Random histories of the whole system in virtual time, checked by rules."
    )
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="K", help="processes (%(default)s)")
    parser.add_argument("--seed", type=int, metavar="S", help="only this one")
    parser.add_argument("--case", type=Path, metavar="FILE", help="a stored scenario in place of a seed's")
    parser.add_argument("--trace", action="store_true", help="with --seed or --case: what happened, line by line")
    parser.add_argument("--shrink", type=Path, metavar="FILE", help="store a shorter scenario that fails alike")
    parser.add_argument("--census", action="store_true", help="count what has happened in how many histories")
    parser.add_argument("--digests", action="store_true", help="print the hash of every history")
    arguments = parser.parse_args()
    if arguments.case is not None:
        return _one(load(arguments.case), arguments)
    if arguments.seed is not None:
        return _one(scenario(arguments.seed), arguments)
    return _many(range(arguments.first, arguments.first + arguments.seeds), arguments)


def _one(story: Scenario, arguments: argparse.Namespace) -> int:
    result = simulate(story, verbose=arguments.trace)
    print(*result.lines, sep="\n", end="\n" if result.lines else "")
    _report(story.seed, result)
    print(f"seed {story.seed}: {result.digest}, {result.seconds:.0f} s in {result.steps} steps")
    if arguments.shrink and result.broken:
        store(arguments.shrink, shrink(story, fails_as(story)))
    return 1 if result.broken else 0


def _many(seeds: range, arguments: argparse.Namespace) -> int:
    start, failed, counts, census = time.monotonic(), 0, Counter[str](), Counter[str]()
    for seed, result in _results(seeds, arguments.jobs):
        failed += bool(result.broken)
        counts += result.counts
        census.update(set(kinds(scenario(seed), result.happened, result.counts)))
        _report(seed, result)
        if arguments.digests:
            print(f"{seed} {result.digest}", flush=True)
    if arguments.census:
        print(*(f"{count:6}  {what}" for what, count in sorted(census.items())), sep="\n")
    if not arguments.digests:
        seconds = time.monotonic() - start
        print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
        print(f"{len(seeds)} seeds, {failed} failed, {seconds:.0f} s ({len(seeds) / seconds:.1f} a second)")
    return 1 if failed else 0


def _results(seeds: range, jobs: int) -> Iterator[tuple[int, Result]]:
    if jobs == 1:
        yield from map(_run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_run, seeds, chunksize=4)


def _run(seed: int) -> tuple[int, Result]:
    return seed, simulate(scenario(seed))


def _report(seed: int, result: Result) -> None:
    for broken in result.broken:
        print(f"seed {seed}: {broken}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
