"""Structured logs; ``request_id`` and ``instance_id`` are bound once and are in every line below."""

import logging
import sys
from contextlib import AbstractContextManager

import orjson
import structlog

_SHARED: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure_logging(*, level: str = "info", json: bool = True) -> None:
    """Write logs, those of libraries too, to standard error: one JSON object a line, or text for people."""
    last: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if json:
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_dumps)]
    else:
        last += [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=_SHARED))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module; may be called before ``configure_logging``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def bound(*, request_id: str | None = None, instance_id: int | None = None) -> AbstractContextManager[None]:
    """Add identities to every line that is logged inside, in tasks started inside too."""
    values = {"request_id": request_id, "instance_id": instance_id}
    return structlog.contextvars.bound_contextvars(**{key: value for key, value in values.items() if value is not None})


def _dumps(value: object, **_: object) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
