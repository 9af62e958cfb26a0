"""What came of it, for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from scripts.endurance.incidents import Ending, Incident
from scripts.endurance.leaks import LIMITS, Growth, Judgement

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Result:
    """All that a soak has found; ``answers`` are those to completions, by HTTP status."""

    seconds: float
    cycles: int
    incidents: Sequence[Incident]
    disturbances: Mapping[str, int]
    answers: Mapping[str, int]
    judgements: Sequence[Judgement]
    broken: Sequence[str]

    @property
    def stuck(self) -> list[Incident]:
        """Incidents that did not end."""
        return [each for each in self.incidents if each.ending is Ending.STUCK]

    @property
    def leaks(self) -> list[str]:
        """What grows, and in which daemon."""
        return [f"{quantity} of {each.name}" for each in self.judgements for quantity in each.leaks]

    @property
    def passed(self) -> bool:
        """It has recovered from something, and nothing is wrong."""
        return self.cycles > 0 and not (self.stuck or self.leaks or self.broken)


def show(result: Result, console: Console) -> None:
    """Tables, everything that is wrong, and the verdict as the last line."""
    console.print(_incidents(result.incidents))
    console.print(_processes(result.judgements))
    for title, counts in (("disturbances", result.disturbances), ("completions by HTTP status", result.answers)):
        console.print(f"{title}: " + (", ".join(f"{name} {count}" for name, count in counts.items()) or "none"))
    for broken, count in Counter(result.broken).items():
        console.print(f"broken ({count} times): {broken}", style="red", markup=False)
    for each in result.stuck:
        console.print(f"stuck: {each.job}, {each.fault}: {each.text}", style="red", markup=False)
    unjudged = [each.name for each in result.judgements if not each.judged]
    if unjudged:
        console.print(f"too short a life to be judged: {', '.join(unjudged)}")
    verdict = "PASSED" if result.passed else "FAILED"
    rebuilt = sum(each.ending is Ending.REBUILT for each in result.incidents)
    console.print(
        f"{verdict}: {result.cycles} recovery cycles, {len(result.incidents)} incidents, {rebuilt} instances rebuilt "
        f"in {result.seconds / 60:.1f} min; stuck: {len(result.stuck)}, rules broken: {len(result.broken)}, "
        f"leaks: {', '.join(result.leaks) or 'none'}",
        style="green" if result.passed else "red",
        soft_wrap=True,
    )


def _incidents(incidents: Iterable[Incident]) -> Table:
    by_fault: dict[str, list[Incident]] = defaultdict(list)
    for each in incidents:
        by_fault[each.fault].append(each)
    table = Table(title="incidents: how they ended, and seconds until all was well")
    table.add_column("fault")
    for column in ("count", *Ending, "median s", "worst s"):
        table.add_column(column, justify="right")
    for fault, found in sorted(by_fault.items()):
        endings = Counter(each.ending for each in found)
        seconds = [each.seconds for each in found]
        cells = (str(endings[each] or "") for each in Ending)
        table.add_row(fault, str(len(found)), *cells, f"{median(seconds):.1f}", f"{max(seconds):.1f}")
    return table


def _processes(judgements: Iterable[Judgement]) -> Table:
    table = Table(title="medians of the first and the last third after the warm-up: of the longest life (of all lives)")
    table.add_column("daemon")
    for column in ("lives", "longest s", *("rss MiB" if name == "rss" else name for name in LIMITS), "verdict"):
        table.add_column(column, justify="right")
    for each in judgements:
        cells = (_cell(name, each) for name in LIMITS)
        verdict = f"leaks {', '.join(each.leaks)}" if each.leaks else "flat" if each.judged else "not judged"
        table.add_row(each.name, str(each.lives), f"{each.seconds:.0f}", *cells, verdict)
    return table


def _cell(name: str, judgement: Judgement) -> str:
    within, across = judgement.within.get(name), judgement.across.get(name)
    texts = [_growth(name, within) if within else "", f"({_growth(name, across)})" if across else ""]
    return " ".join(text for text in texts if text) or "-"


def _growth(name: str, growth: Growth) -> str:
    if name == "rss":
        return f"{growth.first / MIB:.1f} → {growth.last / MIB:.1f}"
    return f"{growth.first:g} → {growth.last:g}"
