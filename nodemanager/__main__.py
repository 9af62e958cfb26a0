"""The command ``motor-nodemanager``."""

from motor_ft.wire.early import end_quietly

end_quietly()  # what follows takes a second or more

import argparse
import sys
from pathlib import Path

from motor_ft.wire.config import ConfigError, load
from motor_ft.wire.daemon import run
from motor_ft.wire.version import add_version
from nodemanager.config import NodeManagerConfig


def main() -> int:
    """Run the NodeManager of one pod; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="motor-nodemanager", description="Owns one pod of an inference instance: engines, guard, apply, reports."
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration, .toml or .json")
    parser.add_argument("--check-config", action="store_true", help="read the configuration and end")
    add_version(parser)
    arguments = parser.parse_args()

    try:
        config = load(arguments.config, NodeManagerConfig)
        if arguments.check_config:
            config.check_files()
            print(f"{arguments.config}: ok")
            return 0
    except ConfigError as error:
        parser.exit(2, f"motor-nodemanager: {error}\n")
    from nodemanager.app import run_node_manager  # only now: it takes a second, for which nobody else shall wait

    return run(lambda stop: run_node_manager(config, stop), name="motor-nodemanager")


if __name__ == "__main__":
    sys.exit(main())
