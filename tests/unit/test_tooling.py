"""The gates of scripts/test fail when they should."""

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "body",
    [
        "def test_it():\n    pytest.skip('no hardware')",
        "@pytest.mark.skip(reason='later')\ndef test_it(): ...",
        "@pytest.mark.xfail\ndef test_it(): assert False",
        "@pytest.mark.xfail\ndef test_it(): ...",
        "pytest.importorskip('no_such_module')",
    ],
)
def test_a_test_that_is_skipped_or_expected_to_fail_fails_the_run(pytester: pytest.Pytester, body: str) -> None:
    pytester.makepyfile(f"import pytest\n\n{body}")
    # What other tests left to the garbage collector is not this run's to judge.
    disabled = ("-p", "no:asyncio", "-p", "no:unraisableexception")
    result = pytester.runpytest_inprocess("-p", "tests.support.no_skips", *disabled)
    assert result.ret in {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}
    result.stdout.fnmatch_lines(["*no test may be skipped or expected to fail*"])


def test_a_leak_fails_the_test_that_left_it_and_only_that(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.support import leaks\nleaks.GRACE_SEC = 0.1")
    pytester.makepyfile("""
        import asyncio, subprocess

        kept = []

        async def test_task():
            kept.append(asyncio.create_task(asyncio.Event().wait(), name="forgotten"))

        async def test_task_that_is_ending():
            asyncio.create_task(asyncio.Event().wait()).cancel()

        def test_child():
            kept.append(subprocess.Popen(["sleep", "60"]))

        def test_orphan():
            subprocess.run(["sh", "-c", "sleep 61 & exit"], check=True)

        def test_child_that_ended():
            subprocess.run(["true"], check=True)
    """)
    result = pytester.runpytest_subprocess("-p", "tests.support.leaks", "-o", "asyncio_mode=auto")
    result.assert_outcomes(passed=5, errors=3)
    result.stdout.fnmatch_lines(["*left tasks running:", "forgotten: *"])
    result.stdout.fnmatch_lines(["*teardown of test_child _*", "*left processes behind:", "*: sleep 60"])
    result.stdout.fnmatch_lines(["*teardown of test_orphan _*", "*left processes behind:", "*: sleep 61"])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what code generation reads, with the tool environment of this checkout."""
    for part in ("scripts", "protos"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    environment = ROOT / ".venv-protoc"
    environment.mkdir(exist_ok=True)
    (tmp_path / ".venv-protoc").symlink_to(environment)
    return tmp_path


def _gen_protos(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([checkout / "scripts/gen_protos", *arguments], capture_output=True, text=True, check=False)


def test_drift_of_generated_code_is_listed_and_repaired(checkout: Path) -> None:
    """Edited, missing and stale generated files are all drift; generating repairs them."""
    generated = checkout / "protos/motor_ft/v1"
    edited, missing, stale = (generated / f"{name}_pb2.py" for name in ("engine", "common", "gone"))
    edited.write_text(edited.read_text() + "\n")
    missing.unlink()
    stale.touch()

    check = _gen_protos(checkout, "--check")
    assert check.returncode == 1
    for path in (edited, missing, stale):
        assert str(path.relative_to(checkout)) in check.stderr
    assert "run scripts/gen_protos" in check.stderr

    assert _gen_protos(checkout).returncode == 0
    assert not stale.exists()
    assert _gen_protos(checkout, "--check").returncode == 0


@pytest.mark.parametrize("name", ["run", "bench", "simulate", "soak", "test", "gen_protos"])
def test_a_script_says_its_version_without_setting_anything_up(name: str) -> None:
    done = subprocess.run([ROOT / "scripts" / name, "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"{name} {version('motor-ft')}\n"


@pytest.mark.parametrize("name", ["test", "gen_protos"])
def test_a_script_explains_itself_without_setting_anything_up(name: str) -> None:
    done = subprocess.run([ROOT / "scripts" / name, "--help"], check=True, capture_output=True, text=True)
    assert f"\n  scripts/{name}  " in done.stdout
    assert "#" not in done.stdout


@pytest.mark.parametrize("daemon", ["controller", "nodemanager", "gateway", "gateway rest"])
def test_a_daemon_says_its_version(daemon: str) -> None:
    command = [sys.executable, "-m", *daemon.split(), "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == f"motor-{daemon} {version('motor-ft')}\n"
