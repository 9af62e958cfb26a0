"""``motor-controller``: start the Controller from a configuration file, or raise the epoch of its fleet."""

from motor_ft.wire.early import end_quietly

end_quietly()  # what follows takes a second or more

import argparse
import asyncio
from pathlib import Path

from controller.config import ControllerConfig
from motor_ft.wire.config import ConfigError, load
from motor_ft.wire.daemon import run
from motor_ft.wire.log import configure_logging
from motor_ft.wire.version import add_version


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 after a clean end, 1 when it cannot start, 2 for a configuration that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="motor-controller",
        description="Fault-tolerance Controller: gathers evidence, decides, and runs recovery transactions.",
    )
    parser.add_argument("command", nargs="?", choices=("serve", "raise-epoch"), default="serve", help="serve: default")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration, .toml or .json")
    parser.add_argument("--check-config", action="store_true", help="read the configuration and end")
    add_version(parser)
    raising = parser.add_argument_group("raise-epoch", "after etcd has lost its data: EPOCH_BEHIND_FLEET")
    raising.add_argument(
        "--above",
        type=_epoch,
        metavar="N",
        help="an epoch that the fleet has followed (default: the one that is known)",
    )
    raising.add_argument("--dry-run", action="store_true", help="only say what would be changed")
    arguments = parser.parse_args(argv)
    raises = arguments.command == "raise-epoch"
    if not raises and (arguments.above is not None or arguments.dry_run):
        parser.error("--above and --dry-run belong to raise-epoch")
    try:
        config = load(arguments.config, ControllerConfig)
        if arguments.check_config:
            config.check_files()
            print(f"{arguments.config}: ok")
            return 0
    except ConfigError as error:
        parser.exit(2, f"motor-controller: {error}\n")
    from controller.app import raise_epoch, serve  # only now: it takes a second, for which nobody else shall wait

    configure_logging(level=config.log.level, json=config.log.json)

    async def work(stop: asyncio.Event) -> None:
        if not raises:
            await serve(config, stop)
            return
        before, after = await raise_epoch(config, arguments.above, dry_run=arguments.dry_run)
        verb = "stays" if before == after else "would be raised to" if arguments.dry_run else "is raised to"
        print(f"the epoch offset {before} {verb} {after}: every term that begins from then on is above {after}")

    return run(work, name="motor-controller")


def _epoch(text: str) -> int:
    from controller.convert import MAX_EPOCH

    value = int(text) if text.isdecimal() else 0
    if not 0 < value <= MAX_EPOCH:
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_EPOCH}, not {text}")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
