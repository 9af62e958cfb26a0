"""What holds for every test: no skips, no leaks, no time limits inside hypothesis."""

from hypothesis import settings

pytest_plugins = ("pytester", "tests.support.leaks", "tests.support.no_skips")

# The parent is hypothesis's own choice for this environment: in CI its runs are repeatable.
settings.register_profile("motor-ft", parent=settings(), deadline=None)
settings.load_profile("motor-ft")
