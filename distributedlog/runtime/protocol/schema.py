"""What a value from a peer or from the store must look like (pure): forms, and one error where it does not.

A form is made once, as a constant of its module. It takes what msgpack gave and returns it, checked: exact
types (a bool is no number), ranges, lengths, counts, and by its own shape the depth. What it says names the
field and the *type* that was found, never the value: the text of a list that is nested a thousand deep is an
error of its own, and a secret may stand in it.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from ..interfaces.errors import CorruptData, InvalidRequest, ProtocolError, UnsupportedFormat
from ..interfaces.host import Buffer
from .frames import unpack

NUMBER_MAX = (1 << 63) - 1
TEXT_CHARS_MAX = 256

Form = Callable[[Any], Any]
"""Returns the value, lists as tuples. Raises `SchemaError`."""


class SchemaError(ValueError):
    """The value is not of the form; says where and what was found instead. Inside of this module's users."""


def check_message(value: Any, form: Form, what: str) -> Any:
    """A value of a peer's message. Raises `ProtocolError`."""
    try:
        return form(value)
    except SchemaError as error:
        raise ProtocolError(f"{what}: {error}") from None


def decode_message(body: Buffer, form: Form, what: str) -> Any:
    """A peer's message. Raises `ProtocolError`."""
    return check_message(unpack(body, what), form, what)


def decode_stored(value: Buffer, form: Form, what: str) -> Any:
    """A value of the store or of a disk. Raises `CorruptData`."""
    return check_stored(_unpack_stored(value, what), form, what)


def decode_versioned(value: Buffer, version_max: int, form: Form, what: str) -> Any:
    """The same, where a map's ``format`` says which version wrote it. Raises `UnsupportedFormat` too."""
    record_map = _unpack_stored(value, what)
    version = check_stored(record_map, _VERSIONED, what)["format"]
    if version > version_max:
        raise UnsupportedFormat(
            f"{what} has format {version}, this program reads up to {version_max}"
        )
    return check_stored(record_map, form, what)


def check_stored(value: Any, form: Form, what: str) -> Any:
    """A part of a value of the store. Raises `CorruptData`."""
    try:
        return form(value)
    except SchemaError as error:
        raise CorruptData(f"{what} cannot be read: {error}") from None


R = TypeVar("R")


def verify_round_trip(
    decode: Callable[[R, bytes], R],
) -> Callable[[Callable[[R], bytes]], Callable[[R], bytes]]:
    """Check each value that ``encode`` makes: decoded, it must give the same record again.

    Every record of the metadata store is encoded through this, once per transaction. A value that decoding
    refuses, or reads as another one, is never sent: it would make a log or a ledger unreadable for good.

    Args:
        decode: Gives the record of an encoded value. The first argument is the record that was encoded.
    """

    def of(encode: Callable[[R], bytes]) -> Callable[[R], bytes]:
        @wraps(encode)
        def checked(record: R) -> bytes:
            value = encode(record)
            try:
                found = decode(record, value)
            except (CorruptData, UnsupportedFormat) as error:
                raise InvalidRequest(
                    f"not stored, for it could not be read again: {error}"
                ) from None
            # By its bytes too: True equals 1, and a lenient decoding reads one as the other.
            if found != record or encode(found) != value:
                raise InvalidRequest(
                    f"not stored: a {type(record).__name__} would be read again as another one"
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
    """Whether a value is a whole number from ``low`` to 2^63 - 1. For messages that are matched, not read."""
    return type(value) is int and minimum <= value <= NUMBER_MAX


def number(minimum: int = 0, maximum: int = NUMBER_MAX) -> Form:
    """A whole number from ``low`` to ``high``."""

    def form(value: Any) -> int:
        if type(value) is not int:
            raise _wrong_type(value, "a number")
        if not minimum <= value <= maximum:
            raise SchemaError(f"a number that is not {minimum} to {maximum}")
        return value

    return form


def text(chars_max: int = TEXT_CHARS_MAX, chars_min: int = 0) -> Form:
    """Text of so many characters."""

    def form(value: Any) -> str:
        if type(value) is not str:
            raise _wrong_type(value, "text")
        if not chars_min <= len(value) <= chars_max:
            raise SchemaError(
                f"text of {len(value)} characters, wanted are {chars_min} to {chars_max}"
            )
        return value

    return form


def blob(bytes_max: int, bytes_min: int = 0) -> Form:
    """So many bytes."""

    def form(value: Any) -> bytes:
        if type(value) is not bytes:
            raise _wrong_type(value, "bytes")
        if not bytes_min <= len(value) <= bytes_max:
            raise SchemaError(f"{len(value)} bytes, wanted are {bytes_min} to {bytes_max}")
        return value

    return form


def flag(value: Any) -> bool:
    """True or False. (A form, not a maker of one.)"""
    if type(value) is not bool:
        raise _wrong_type(value, "true or false")
    return value


def one_of(*choices: str) -> Form:
    """One of these texts."""

    def form(value: Any) -> str:
        if type(value) is not str or value not in choices:
            raise SchemaError(f"not one of {', '.join(choices)}")
        return value

    return form


def optional(form: Form) -> Form:
    """Nothing, or that."""

    def either(value: Any) -> Any:
        return None if value is None else form(value)

    return either


def row(*forms: Form, later: bool = False) -> Form:
    """A list of exactly these, as a tuple. ``later``: more may follow, which a newer version wrote."""
    count = len(forms)

    def form(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong_type(value, "a list")
        if len(value) != count and not (later and len(value) > count):
            raise SchemaError(f"a list of {len(value)} fields, wanted are {count}")
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
    """A list of so many, each of that form, as a tuple."""

    def each(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong_type(value, "a list")
        if not count_min <= len(value) <= count_max:
            raise SchemaError(f"a list of {len(value)}, wanted are {count_min} to {count_max}")
        try:
            return tuple([form(item) for item in value])
        except SchemaError:  # once more, slowly, to say which
            return tuple(
                [_check_field(f"row {index}", form, item) for index, item in enumerate(value)]
            )

    return each


def mapping(form: Form, count_max: int, chars_max: int = TEXT_CHARS_MAX) -> Form:
    """A map from text to that form, of at most so many."""
    key_form = text(chars_max)

    def each(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong_type(value, "a map")
        if len(value) > count_max:
            raise SchemaError(f"a map of {len(value)}, allowed are {count_max}")
        return {
            _check_field("a name", key_form, key): _check_field("a value", form, item)
            for key, item in value.items()
        }

    return each


def list_of_any(value: Any) -> list[Any]:
    """A list of what another form takes, one at a time. (A form, not a maker of one.)"""
    if type(value) is not list:
        raise _wrong_type(value, "a list")
    return value


def fields(later: Mapping[str, tuple[Form, Any]] | None = None, /, **forms: Form) -> Form:
    """A map with these names; others are left to newer versions.

    ``later``: names that older versions did not write, with what stands for them then.
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
