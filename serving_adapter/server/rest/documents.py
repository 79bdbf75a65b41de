"""Messages of the protocol as JSON documents, with the field names and the numbers of its REST form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import Message


def document(message: Message) -> dict[str, Any]:
    """All fields of a message but the messages that are not set. Whole numbers stay numbers.

    protobuf's own form writes those of 64 bits as texts, which clients of REST do not expect.
    """
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: Any, value: Any) -> Any:
    """Of a field's descriptor, and what the field holds."""
    if isinstance(value, Mapping):
        of_values = field.message_type.fields_by_name["value"]
        return {str(key): _value(of_values, each) for key, each in value.items()}
    if not isinstance(value, str | bytes) and isinstance(value, Iterable):
        return [_single(field, each) for each in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return document(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
