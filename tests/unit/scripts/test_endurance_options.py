"""The command line of ``scripts/soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.endurance.options import parse


def test_a_folder_and_a_seed_are_chosen_where_none_is_given(tmp_path: Path) -> None:
    """The seed is another one each time."""
    options = [parse(["--minutes", "2", "--evidence", str(tmp_path / name)]) for name in ("a", "b")]
    assert [each.folder.is_dir() for each in options] == [True, True]
    assert options[0].seed != options[1].seed
    assert (options[0].seconds, options[0].cycles) == (120.0, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--minutes", "0"],
        ["--cycles", "0"],
        ["--instances", "0"],
        ["--evidence", __file__],
        ["--evidence", str(Path(__file__).parent)],
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that has something in it is left alone too."""
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err
