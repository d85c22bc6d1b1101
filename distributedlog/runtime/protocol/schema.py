"""Check the form of values from peers and from storage (pure), with one error type per origin.

A form is a constant of its module. It receives the result of msgpack and returns it, checked for exact types
(a bool is not a number), ranges, lengths, counts and, by its own structure, the depth. An error names the
field and the *type* of the value, never the value itself. The text of a list that is nested a thousand levels
deep would raise another error, and the value may contain a secret.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from ..interfaces.errors import CorruptData, InvalidRequest, ProtocolError, UnsupportedFormat
from ..interfaces.host import Buffer
from .frames import unpack

R = TypeVar("R")

NUMBER_MAX = (1 << 63) - 1
TEXT_CHARS_MAX = 256

Form = Callable[[Any], Any]
"""Returns the value, with lists as tuples. Raises `SchemaError`."""


class SchemaError(ValueError):
    """The value does not have the form. The text names the field and the error.

    The check functions of this module convert it to another error.
    """


def check_message(value: Any, form: Form, what: str) -> Any:
    """Check a value of a peer's message. Raises `ProtocolError`."""
    try:
        return form(value)
    except SchemaError as error:
        raise ProtocolError(f"{what}: {error}") from None


def decode_message(body: Buffer, form: Form, what: str) -> Any:
    """Decode and check a peer's message. Raises `ProtocolError`."""
    return check_message(unpack(body, what), form, what)


def decode_stored(value: Buffer, form: Form, what: str) -> Any:
    """Decode and check a stored value. Raises `CorruptData`."""
    return check_stored(_unpack_stored(value, what), form, what)


def decode_versioned(value: Buffer, version_max: int, form: Form, what: str) -> Any:
    """Decode and check a stored map whose ``format`` is the version that wrote it.

    Raises:
        UnsupportedFormat: The version is newer than ``version_max``.
        CorruptData: The value does not have the form.
    """
    record_map = _unpack_stored(value, what)
    version = check_stored(record_map, _VERSIONED, what)["format"]
    if version > version_max:
        raise UnsupportedFormat(
            f"{what} has format {version}, this program reads up to {version_max}"
        )
    return check_stored(record_map, form, what)


def check_stored(value: Any, form: Form, what: str) -> Any:
    """Check a part of a stored value. Raises `CorruptData`."""
    try:
        return form(value)
    except SchemaError as error:
        raise CorruptData(f"{what} cannot be read: {error}") from None


def readable(decode: Callable[[bytes], R], value: bytes) -> "R | CorruptData | UnsupportedFormat":
    """Return a decoded record, or the error of one that cannot be decoded.

    Use it for lists of records, so that a damaged record becomes one row and does not hide the others.
    """
    try:
        return decode(value)
    except (CorruptData, UnsupportedFormat) as error:
        return error


def verify_round_trip(
    decode: Callable[[R, bytes], R],
) -> Callable[[Callable[[R], bytes]], Callable[[R], bytes]]:
    """Verify each value that an encoder makes: decoding must return an equal record.

    Every record of the metadata store is encoded through this, once per transaction. A value that decoding
    rejects, or reads as another record, is never sent. It would make a log or a ledger permanently
    unreadable.

    Args:
        decode: Returns the record of an encoded value. The first argument is the record that was encoded.
    """

    def of(encode: Callable[[R], bytes]) -> Callable[[R], bytes]:
        @wraps(encode)
        def checked(record: R) -> bytes:
            value = encode(record)
            try:
                found = decode(record, value)
            except (CorruptData, UnsupportedFormat) as error:
                raise InvalidRequest(
                    f"not stored, because it could not be read again: {error}"
                ) from None
            # The bytes are compared too: True equals 1, and a lenient decoder reads one as the other.
            if found != record or encode(found) != value:
                raise InvalidRequest(
                    f"not stored: a {type(record).__name__} would be read back with another value"
                )
            return value

        return checked

    return of


def _unpack_stored(value: Buffer, what: str) -> Any:
    try:
        return unpack(value, what)
    except ProtocolError as error:
        raise CorruptData(str(error)) from None


# --- forms ----------------------------------------------------------------------------------------


def is_number(value: Any, minimum: int = 0) -> bool:
    """Return whether a value is an integer from ``minimum`` to 2^63 - 1.

    For messages that are matched by patterns, not read by a form.
    """
    return type(value) is int and minimum <= value <= NUMBER_MAX


def number(minimum: int = 0, maximum: int = NUMBER_MAX) -> Form:
    """Return the form of an integer from ``minimum`` to ``maximum``."""

    def form(value: Any) -> int:
        if type(value) is not int:
            raise _wrong_type(value, "a number")
        if not minimum <= value <= maximum:
            raise SchemaError(f"a number that is not {minimum} to {maximum}")
        return value

    return form


def text(chars_max: int = TEXT_CHARS_MAX, chars_min: int = 0) -> Form:
    """Return the form of a text with ``chars_min`` to ``chars_max`` characters."""

    def form(value: Any) -> str:
        if type(value) is not str:
            raise _wrong_type(value, "text")
        if not chars_min <= len(value) <= chars_max:
            raise SchemaError(
                f"text of {len(value)} characters instead of {chars_min} to {chars_max}"
            )
        return value

    return form


def blob(bytes_max: int, bytes_min: int = 0) -> Form:
    """Return the form of a byte string with ``bytes_min`` to ``bytes_max`` bytes."""

    def form(value: Any) -> bytes:
        if type(value) is not bytes:
            raise _wrong_type(value, "bytes")
        if not bytes_min <= len(value) <= bytes_max:
            raise SchemaError(f"{len(value)} bytes instead of {bytes_min} to {bytes_max}")
        return value

    return form


def flag(value: Any) -> bool:
    """Check that a value is True or False. This is a form itself."""
    if type(value) is not bool:
        raise _wrong_type(value, "true or false")
    return value


def one_of(*choices: str) -> Form:
    """Return the form of one of these texts."""

    def form(value: Any) -> str:
        if type(value) is not str or value not in choices:
            raise SchemaError(f"not one of {', '.join(choices)}")
        return value

    return form


def optional(form: Form) -> Form:
    """Return a form that also accepts None."""

    def either(value: Any) -> Any:
        return None if value is None else form(value)

    return either


def row(*forms: Form, later: bool = False) -> Form:
    """Return the form of a list with exactly these fields, which becomes a tuple.

    With ``later``, further fields from newer versions may follow.
    """
    count = len(forms)

    def form(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong_type(value, "a list")
        if len(value) != count and not (later and len(value) > count):
            raise SchemaError(f"a list of {len(value)} fields instead of {count}")
        try:
            return tuple([field_form(item) for field_form, item in zip(forms, value, strict=False)])
        except SchemaError:
            return tuple(
                [
                    _check_field(f"field {index}", field_form, value[index])
                    for index, field_form in enumerate(forms)
                ]
            )

    return form


def rows(form: Form, count_max: int, count_min: int = 0) -> Form:
    """Return the form of a list with ``count_min`` to ``count_max`` items of one form.

    The list becomes a tuple.
    """

    def each(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong_type(value, "a list")
        if not count_min <= len(value) <= count_max:
            raise SchemaError(f"a list of {len(value)} items instead of {count_min} to {count_max}")
        try:
            return tuple([form(item) for item in value])
        except SchemaError:  # once more, slowly, to find the item for the error
            return tuple(
                [_check_field(f"row {index}", form, item) for index, item in enumerate(value)]
            )

    return each


def mapping(form: Form, count_max: int, chars_max: int = TEXT_CHARS_MAX) -> Form:
    """Return the form of a map from text to values of one form, with at most ``count_max`` items."""
    key_form = text(chars_max)

    def each(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong_type(value, "a map")
        if len(value) > count_max:
            raise SchemaError(f"a map of {len(value)} items, the limit is {count_max}")
        return {
            _check_field("a name", key_form, key): _check_field("a value", form, item)
            for key, item in value.items()
        }

    return each


def list_of_any(value: Any) -> list[Any]:
    """Check that a value is a list, whose items another form checks one at a time. This is a form itself."""
    if type(value) is not list:
        raise _wrong_type(value, "a list")
    return value


def fields(later: Mapping[str, tuple[Form, Any]] | None = None, /, **forms: Form) -> Form:
    """Return the form of a map with these names; further names of newer versions are ignored.

    Args:
        later: Names that older versions did not write, with their form and their default.
        forms: The form of each required name.
    """
    optional_forms = dict(later or {})

    def form(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong_type(value, "a map")
        missing = [name for name in forms if name not in value]
        if missing:
            raise SchemaError(f"{missing[0]} is missing")
        checked_fields = {
            name: _check_field(name, field_form, value[name]) for name, field_form in forms.items()
        }
        for name, (field_form, default) in optional_forms.items():
            checked_fields[name] = (
                _check_field(name, field_form, value[name]) if name in value else default
            )
        return checked_fields

    return form


def _check_field(field_name: str, form: Form, value: Any) -> Any:
    try:
        return form(value)
    except SchemaError as error:
        raise SchemaError(f"{field_name}: {error}") from None


def _wrong_type(value: Any, expected: str) -> SchemaError:
    return SchemaError(f"{type(value).__name__} instead of {expected}")


_VERSIONED = fields(format=number())
