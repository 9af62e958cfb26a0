"""What ``scripts/simulate`` is asked for is what it does, or it says why not."""

from pathlib import Path

import pytest

from tests.simulation.__main__ import main
from tests.simulation.scenario import scenario, store


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--seeds 0", "--seeds and --jobs must be at least 1"),
        ("--seeds 1 --jobs 0", "--seeds and --jobs must be at least 1"),
        ("--seed 1 --seeds 2 --first 0", "--seeds, --first: not with --seed, --case or --story"),
        ("--seed 1 --census", "--census: not with --seed, --case or --story"),
        ("--trace", "--trace: only with --seed, --case or --story"),
        ("--shrink short.json --seeds 1", "--shrink: only with --seed, --case or --story"),
        ("--case nope.json", "--case: nope.json: No such file or directory"),
        ("--case {tmp}/broken.json", "--case: {tmp}/broken.json: JSON is malformed"),
        ("--case {tmp}/odd.json", "--case: {tmp}/odd.json: Object missing required field"),
        ("--case {tmp}/odd.json --seed 1", "--seed and --case are two histories; name one"),
        ("--story nope", "argument --story: invalid choice: 'nope'"),
    ],
)
def test_what_cannot_be_done_is_refused(
    arguments: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.json").write_text("nope")
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(SystemExit) as left:
        main(arguments.format(tmp=tmp_path).split())
    assert left.value.code == 2
    assert f"error: {why.format(tmp=tmp_path)}" in capsys.readouterr().err


def test_a_stored_scenario_is_run_as_its_seed_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path / "case.json", scenario(1))
    assert [main(["--seed", "1"]), main(["--case", str(tmp_path / "case.json")])] == [0, 0]
    by_seed, by_case = capsys.readouterr().out.splitlines()
    assert by_seed == by_case
