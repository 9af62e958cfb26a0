"""Any order of answers, losses, deaths, pushes, time and cancels: the watchdog's invariants hold and it always ends."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core import effects as fx
from controller.core.phases import Phase
from controller.core.probe import CompletionProbe
from controller.core.transaction import Outcome, Spec, Step
from motor_ft.model.engine import EngineStatus, EvidenceSource, FtState, Instruction
from tests.unit.controller.core.fleet import pod
from tests.unit.controller.core.transaction.world import START, Run, spec

T = TypeVar("T")


class Pick(Protocol):
    """Chooses one of several; the only source of chance."""

    def __call__(self, options: Sequence[T], /) -> T: ...


def some_spec(pick: Pick) -> Spec:
    """Three to five ranks over up to three pods, some headless, some gone; new candidates, or a retry."""
    ranks = range(pick([3, 4, 5]))
    owners = [pick([1, 2, 3]) for _ in ranks]
    headless = [(pick(ranks), pick([1, 2, 3])) for _ in range(pick([0, 1, 2]))]
    gone = {pick(ranks) for _ in range(pick(range(len(ranks) - 2)))}
    active = sorted(set(ranks) - gone)
    retries = pick([True, False])
    candidates = {pick(active): pick(list(EvidenceSource)) for _ in range(pick([1, 2]))}
    pods = [
        pod(number, [r for r in ranks if owners[r] == number], headless={r for r, at in headless if at == number})
        for number in (1, 2, 3)
    ]
    return spec(
        {} if retries else candidates,
        pods=tuple(registration for registration in pods if registration.endpoints),
        dead_committed=gone,
        previous_phase=Phase.SCALED_DOWN_RUNNING if gone else Phase.NORMAL,
        unhealthy_since=START - pick([0.0, 40.0, 85.0]),
        instruction=Instruction.RETRY if retries else Instruction.SCALE_DOWN,
        completion_probe=pick(list(CompletionProbe)),
        recycles=pick([True, False]),
    )


class Story:
    """Random steps of one run, with only some kinds of trouble: so it gets far with those."""

    def __init__(self, run: Run, pick: Pick) -> None:
        self.run = run
        self.pick = pick
        troubles = [self.change, self.die, self.push, self.lose, self.sleep, self.tick, self.cancel]
        chosen = [pick(troubles) for _ in range(pick([1, 2, 3, 4]))]
        self.steps: list[Callable[[], None]] = [self.answer, self.answer, *chosen]

    def step(self) -> None:
        """One thing happens."""
        self.pick(self.steps)()

    def rank(self) -> int:
        """Any rank, a removed one too."""
        return self.pick(sorted(self.run.spec.original))

    def answer(self) -> None:
        """Any effect is answered, in any order."""
        if self.run.owed:
            self.run.answer(self.pick(self.run.owed))
        elif self.run.state.wake_at is not None:
            self.run.tick()

    def lose(self) -> None:
        """An answer is an error, or a refusal."""
        really = self.pick([True, False])
        if really and self.run.owed:
            self.run.lose(self.pick(self.run.owed), refused=self.pick([True, False]))

    def push(self) -> None:
        """The watch shows a reading."""
        self.run.push(self.rank())

    def die(self) -> None:
        """By any evidence."""
        if self.pick([True, False]):
            self.run.die(self.rank(), self.pick(list(EvidenceSource)))

    def change(self) -> None:
        """An engine reads differently from now on, or is replaced behind our back."""
        engine = self.run.engines[self.rank()]
        status = self.pick([*[EngineStatus.UNHEALTHY] * 3, *EngineStatus])
        ft_state = self.pick([*[FtState.NONE] * 5, *FtState])
        self.run.reading(engine.rank, status, ft_state, self.pick(["request-1", "earlier"]))
        if self.pick(range(10)) == 9:
            engine.incarnation, engine.counter = engine.incarnation + "'", 0

    def sleep(self) -> None:
        """Time goes on although nobody wanted to be woken."""
        self.run.now += self.pick([0.5, 1.0, 3.0, 15.0])

    def tick(self) -> None:
        """A wake-up, due or not."""
        if self.run.state.wake_at is not None and self.pick([True, False]):
            self.run.now = max(self.run.now, self.run.state.wake_at)
        self.run.feed(fx.Tick())

    def cancel(self) -> None:
        """The FaultManager asks to stop."""
        if self.pick(range(5)) == 4:
            self.run.feed(fx.Cancel("pre-empted"))


def reach(run: Run, step: Step) -> None:
    """All goes well so far."""
    while not (run.at(step) or run.at(Step.DONE)):
        run.answer(run.owed[0]) if run.owed else run.tick()


def settle(run: Run, *, finalizes_answered: bool) -> None:
    """Nothing new happens; the store works again, NodeManagers may stay silent to Finalize. It ends."""
    while not run.at(Step.DONE):
        owed = run.owed[0] if run.owed else None
        if owed is None:
            run.tick()
        elif isinstance(owed.effect, fx.Finalize) and not finalizes_answered:
            run.lose(owed)
        else:
            run.answer(owed)


def tell(pick: Pick) -> None:
    """One story, from its begin to its end."""
    run = Run(some_spec(pick))
    reach(run, pick([step for step in Step if step is not Step.DONE]))
    story = Story(run, pick)
    for _ in range(60):
        if run.at(Step.DONE):
            break
        story.step()
    settle(run, finalizes_answered=pick([True, True, False]))
    run.watchdog.end(run.state)


def drawn(data: st.DataObject) -> Pick:
    """Chance by hypothesis, which makes a failing story short."""
    return lambda options: data.draw(st.sampled_from(options))


@given(st.data())
def test_whatever_happens_the_invariants_hold_and_the_transaction_ends(data: st.DataObject) -> None:
    """The invariants are those of the watchdog, checked at every event."""
    tell(drawn(data))


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_they_hold_in_hundreds_of_stories_that_are_all_equally_likely(first: int) -> None:
    """Hypothesis prefers short and similar stories; these are long and different, and the same in every run."""
    for seed in range(first, first + 100):
        tell(Random(seed).choice)


@given(st.data())
def test_when_nothing_goes_wrong_any_order_of_answers_succeeds(data: st.DataObject) -> None:
    pick = drawn(data)
    start = some_spec(pick)
    run = Run(start)
    while not run.at(Step.DONE):
        run.answer(pick(run.owed)) if run.owed else run.tick()
    someone_survives = bool(start.active - start.candidates.keys())
    assert (run.state.outcome is Outcome.SUCCEEDED) is someone_survives
    run.watchdog.end(run.state)
