"""Any order of answers, losses, deaths, pushes, time and cancels: the watchdog's invariants hold and it always ends."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core import effects as fx
from controller.core.phases import Phase
from controller.core.transaction import Outcome, Spec, Step
from motor_ft.model.engine import EngineStatus, EvidenceSource, FtState
from tests.unit.controller.core.fleet import pod
from tests.unit.controller.core.transaction.world import START, Run, spec

ENOUGH = 400
"""Events within which a transaction ends once nothing new happens: at most one lease of retries, twice a second."""


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Two to five ranks over up to three pods, some headless, some gone, at least one new candidate."""
    owners = draw(st.lists(st.integers(1, 3), min_size=2, max_size=5))
    headless = draw(st.sets(st.tuples(st.integers(0, len(owners) - 1), st.integers(1, 3)), max_size=2))
    gone = draw(st.sets(st.integers(0, len(owners) - 1), max_size=len(owners) - 2))
    active = sorted(set(range(len(owners))) - gone)
    candidates = draw(st.dictionaries(st.sampled_from(active), st.sampled_from(EvidenceSource), min_size=1, max_size=2))
    pods = [
        pod(
            number,
            [r for r, owner in enumerate(owners) if owner == number],
            headless=[r for r, at in headless if at == number],
        )
        for number in (1, 2, 3)
    ]
    return spec(
        candidates,
        pods=tuple(registration for registration in pods if registration.endpoints),
        dead_committed=gone,
        previous_phase=Phase.SCALED_DOWN_RUNNING if gone else Phase.NORMAL,
        unhealthy_since=START - draw(st.sampled_from([0.0, 5.0, 80.0, 90.0])),
    )


class Story:
    """Random steps of one run."""

    def __init__(self, run: Run, data: st.DataObject) -> None:
        self.run = run
        self.data = data
        self.steps: list[Callable[[], None]] = [
            # Answers are many: most stories shall get far.
            self.answer,
            self.answer,
            self.answer,
            self.answer,
            self.tick,
            self.lose,
            self.push,
            self.die,
            self.change,
            self.sleep,
            self.cancel,
        ]

    def step(self) -> None:
        """One thing happens."""
        self.data.draw(st.sampled_from(self.steps))()

    def rank(self) -> int:
        return self.data.draw(st.sampled_from(sorted(self.run.spec.original)))

    def answer(self) -> None:
        """Any effect is answered, in any order."""
        if self.run.owed:
            self.run.answer(self.data.draw(st.sampled_from(self.run.owed)))
        elif self.run.state.wake_at is not None:
            self.run.tick()

    def lose(self) -> None:
        """An answer is an error, or a refusal."""
        if self.run.owed:
            self.run.lose(self.data.draw(st.sampled_from(self.run.owed)), refused=self.data.draw(st.booleans()))

    def push(self) -> None:
        """The watch shows a reading."""
        self.run.push(self.rank())

    def die(self) -> None:
        """Any rank, survivor or not, by any evidence."""
        self.run.die(self.rank(), self.data.draw(st.sampled_from(EvidenceSource)))

    def change(self) -> None:
        """An engine reads differently from now on, or is replaced behind our back."""
        engine = self.run.engines[self.rank()]
        status = self.data.draw(st.sampled_from([EngineStatus.UNHEALTHY, *EngineStatus]))
        ft_state = self.data.draw(st.sampled_from([FtState.NONE, FtState.NONE, *FtState]))
        self.run.reading(engine.rank, status, ft_state, self.data.draw(st.sampled_from(["request-1", "earlier"])))
        if self.data.draw(st.integers(0, 9)) == 0:
            engine.incarnation, engine.counter = engine.incarnation + "'", 0

    def sleep(self) -> None:
        """Time goes on although nobody wanted to be woken."""
        self.run.now += self.data.draw(st.sampled_from([0.5, 3.0, 15.0, 40.0]))

    def tick(self) -> None:
        """A wake-up, due or not."""
        if self.run.state.wake_at is not None and self.data.draw(st.booleans()):
            self.run.now = max(self.run.now, self.run.state.wake_at)
        self.run.feed(fx.Tick())

    def cancel(self) -> None:
        """The FaultManager asks to stop."""
        if self.data.draw(st.integers(0, 3)) == 0:
            self.run.feed(fx.Cancel("pre-empted"))


def settle(run: Run, *, finalizes_answered: bool) -> None:
    """Nothing new happens; the store works again, NodeManagers may stay silent to Finalize. It ends."""
    for _ in range(ENOUGH):
        if run.at(Step.DONE):
            return
        owed = run.owed[0] if run.owed else None
        if owed is None:
            run.tick()
        elif isinstance(owed.effect, fx.Finalize) and not finalizes_answered:
            run.lose(owed)
        else:
            run.answer(owed)
    raise AssertionError(f"no end in {ENOUGH} events: {run.state}")


@given(specs(), st.data())
@settings(max_examples=200)
def test_whatever_happens_the_invariants_hold_and_the_transaction_ends(start: Spec, data: st.DataObject) -> None:
    """The invariants are those of the watchdog, checked at every event."""
    run = Run(start)
    story = Story(run, data)
    for _ in range(data.draw(st.integers(0, 50))):
        if run.at(Step.DONE):
            break
        story.step()
    settle(run, finalizes_answered=data.draw(st.booleans()))
    run.watchdog.end(run.state)


@given(specs(), st.data())
def test_when_nothing_goes_wrong_any_order_of_answers_succeeds(start: Spec, data: st.DataObject) -> None:
    run = Run(start)
    while not run.at(Step.DONE):
        if run.owed:
            run.answer(data.draw(st.sampled_from(run.owed)))
        else:
            run.tick()
    possible = run.spec.active - run.spec.candidates.keys() and START - min(run.spec.unhealthy_since.values()) <= 85
    assert (run.state.outcome is Outcome.SUCCEEDED) is bool(possible)
    run.watchdog.end(run.state)
