"""The command ``motor-gateway``."""

from motor_ft.wire.early import end_quietly

end_quietly()  # what follows takes a second or more

import argparse
import asyncio
import sys
from pathlib import Path

from gateway.config import EngineDaemonConfig, MindClusterDaemonConfig, RestDaemonConfig
from motor_ft.wire.config import load
from motor_ft.wire.daemon import run
from motor_ft.wire.version import add_version

_SCHEMAS: dict[str, type[EngineDaemonConfig | RestDaemonConfig | MindClusterDaemonConfig]] = {
    "engine": EngineDaemonConfig,
    "rest": RestDaemonConfig,
    "mindcluster": MindClusterDaemonConfig,
}


def main() -> int:
    """Run the daemon that the command line names; returns the exit code."""
    arguments = _parser().parse_args()

    async def daemon(stop: asyncio.Event) -> None:
        config = load(arguments.config, _SCHEMAS[arguments.daemon])
        if arguments.check_config:
            config.check_files()
            print(f"{arguments.config}: ok")
            return
        # Only now: gRPC and Kubernetes take seconds to import, which nobody who needs them not shall wait for.
        if isinstance(config, MindClusterDaemonConfig):
            from gateway.mindcluster.app import run_mindcluster

            await run_mindcluster(config, stop)
            return
        from gateway.app import run_engine, run_rest

        if isinstance(config, EngineDaemonConfig):
            await run_engine(config, stop)
        else:
            await run_rest(config, stop)

    return run(daemon, name=f"motor-gateway {arguments.daemon}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="motor-gateway",
        description="Foreign protocols of motor-ft: engines and hardware southwards, REST northwards.",
    )
    add_version(parser)
    daemons = parser.add_subparsers(dest="daemon", required=True, metavar="DAEMON")
    for name, text in {
        "engine": "serve EngineService (gRPC) for the NodeManager of this pod, on top of the engines' HTTP interface",
        "rest": "serve the REST routes under /controller beside a Controller",
        "mindcluster": "report the hardware faults of an Ascend cluster to the Controller",
    }.items():
        daemon = daemons.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        add_version(daemon)
        daemon.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration, .toml or .json")
        daemon.add_argument("--check-config", action="store_true", help="read the configuration and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
