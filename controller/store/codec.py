"""Stored form of a record: JSON in an envelope that names the version of the record's fields."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import msgspec

from controller.core.assembly import check_identity
from controller.core.ports import Loaded, Stored, Unreadable
from controller.core.records import IdentityRecord, RuntimeRecord
from motor_ft.model.errors import FieldError
from motor_ft.wire.decoding import NOT_JSON

VERSIONS = (1, 2)
"""A record has the lowest that reads it rightly, so that an older Controller may take over from a newer one."""

RecordT = TypeVar("RecordT", IdentityRecord, RuntimeRecord)


class Kind(StrEnum):
    """The two records of an instance."""

    IDENTITY = "identity"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class Row:
    """One stored record."""

    kind: Kind
    instance_id: int
    revision: int
    body: bytes


class UnreadableError(Exception):
    """A stored body is damaged, or was written by a version that this one does not know."""


class _Envelope(msgspec.Struct, frozen=True):
    version: int
    record: msgspec.Raw


def encode(record: IdentityRecord | RuntimeRecord) -> bytes:
    """Return the body to store."""
    return msgspec.json.encode(_Envelope(_version(record), msgspec.Raw(msgspec.json.encode(record))))


def _version(record: IdentityRecord | RuntimeRecord) -> int:
    """The first version knew of no instance that may not be published whatever its phase is."""
    first = isinstance(record, RuntimeRecord) or not (record.isolated or record.dissolved or record.gone_at)
    return 1 if first else 2


def decode(body: bytes, schema: type[RecordT]) -> RecordT:
    """Read a body; raises UnreadableError."""
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
        if envelope.version not in VERSIONS:
            raise UnreadableError(f"is of version {envelope.version}, this Controller knows {VERSIONS[-1]}")
        return msgspec.json.decode(envelope.record, type=schema)
    except NOT_JSON as error:
        raise UnreadableError(str(error)) from error


def gather(rows: Iterable[Row]) -> Loaded:
    """Read all rows; what cannot be read is reported and does not keep the others from loading."""
    loaded = Loaded({}, {}, {})
    for row in rows:
        try:
            if row.kind is Kind.IDENTITY:
                loaded.identities[row.instance_id] = Stored(_identity(row), row.revision)
            else:
                runtime = decode(row.body, RuntimeRecord)
                loaded.runtimes[row.instance_id] = Stored(runtime, row.revision)
        except UnreadableError as error:
            loaded.unreadable[row.instance_id] = Unreadable(f"{row.kind} record {error}", row.revision)
    return loaded


def _identity(row: Row) -> IdentityRecord:
    identity = decode(row.body, IdentityRecord)
    try:
        check_identity(identity, row.instance_id)
    except FieldError as error:
        raise UnreadableError(error.message) from error
    return identity
