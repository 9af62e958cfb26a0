"""Any message of a type, and good messages in which something is anything else."""

from typing import Any, TypeAlias, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

M = TypeVar("M", bound=Message)
Field: TypeAlias = Any
"""A FieldDescriptor, of whichever implementation of protobuf."""

INTEGERS = [0, 1, 2, 3, 7, -1, 65535, 65536, 315_576_000_001, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)]
TEXTS = st.sampled_from(["", "pod-0", "op", "x" * 129, "9" * 5000, "é\u2028\0", "127.0.0.1:²"]) | st.text(max_size=6)
_BITS = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}


def _scalar(field: Field) -> SearchStrategy[Any]:
    if (bits := _BITS.get(field.cpp_type)) is not None:
        return st.sampled_from([value for value in INTEGERS if -(2**bits) <= value < 2**bits])
    if field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        return st.sampled_from([0, 1, 2**32 - 1])
    if field.enum_type is not None:
        return st.sampled_from([*(value.number for value in field.enum_type.values), 99, -1])
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return st.binary(max_size=6) if field.type == FieldDescriptor.TYPE_BYTES else TEXTS
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    return st.floats()


def _fill(draw: DrawFn, message: Message, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if draw(st.booleans()):
            _set(draw, message, field, depth)


def _set(draw: DrawFn, message: Message, field: Field, depth: int) -> None:
    """Give a field another value, or none."""
    message.ClearField(field.name)
    value = getattr(message, field.name)
    nested = field.message_type
    if nested is not None and nested.GetOptions().map_entry:
        key, item = (nested.fields_by_name[name] for name in ("key", "value"))
        if item.message_type is None:
            value.update(draw(st.dictionaries(_scalar(key), _scalar(item), max_size=3)))
    elif nested is not None and depth == 0:
        return
    elif nested is not None and field.is_repeated:
        for _ in range(draw(st.integers(0, 3))):
            _fill(draw, value.add(), depth - 1)
    elif nested is not None:
        value.SetInParent()
        _fill(draw, value, depth - 1)
    elif field.is_repeated:
        value.extend(draw(st.lists(_scalar(field), max_size=4)))
    else:
        setattr(message, field.name, draw(_scalar(field)))


@st.composite
def messages(draw: DrawFn, kind: type[M]) -> M:
    """Any message of this type."""
    message = kind()
    _fill(draw, message, 4)
    return message


@st.composite
def changed(draw: DrawFn, good: M) -> M:
    """A good message of which up to two fields, anywhere in it, are anything else."""
    message = type(good)()
    message.CopyFrom(good)
    for _ in range(draw(st.integers(0, 2)) if message.DESCRIPTOR.fields else 0):
        place, field = draw(st.sampled_from(list(_places(message))))
        _set(draw, place, field, 2)
    return message


def _places(message: Message) -> list[tuple[Message, Field]]:
    found = [(message, field) for field in message.DESCRIPTOR.fields]
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                found += _places(inner)
    return found
