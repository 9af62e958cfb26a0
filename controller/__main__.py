"""``motor-controller``: start the Controller from a configuration file."""

import argparse
from pathlib import Path

from controller.app import serve
from controller.config import ControllerConfig
from motor_ft.wire.config import ConfigError, load
from motor_ft.wire.daemon import run
from motor_ft.wire.log import configure_logging


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 after a clean end, 1 when it cannot start, 2 for a configuration that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="motor-controller",
        description="Fault-tolerance Controller: gathers evidence, decides, and runs recovery transactions.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration, .toml or .json")
    parser.add_argument("--check-config", action="store_true", help="read the configuration and end")
    arguments = parser.parse_args(argv)
    try:
        config = load(arguments.config, ControllerConfig)
    except ConfigError as error:
        parser.exit(2, f"motor-controller: {error}\n")
    if arguments.check_config:
        print(f"{arguments.config}: ok")
        return 0
    configure_logging(level=config.log.level, json=config.log.json)
    return run(lambda stop: serve(config, stop), name="motor-controller")


if __name__ == "__main__":
    raise SystemExit(main())
