"""How often this adapter has started, so that its incarnations are in order whatever clocks say (protocol.md 3)."""

import os
from pathlib import Path

from motor_ft.wire.config import ConfigError

_FILE = "mindcluster-starts"


def count_start(directory: Path) -> int:
    """Return the number of this start, from 1, durable before it is used; raises ConfigError."""
    path = directory / _FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        number = int(path.read_text()) + 1 if path.exists() else 1
        new = path.with_suffix(".new")
        with new.open("w") as file:
            file.write(f"{number}\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"state_dir: cannot count this start in {path}: {error}") from error
    return number
