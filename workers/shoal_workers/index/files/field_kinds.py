"""The kinds of fields (keyword, number, date, boolean, stored), and how their values are read."""

import re
from calendar import isleap, monthrange
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

#: The kinds that a field may have. For a `stored` field, an index only knows which documents have a value. The values
#: may be maps, lists of lists, or long texts.
KINDS = ("keyword", "number", "date", "boolean", "stored")

#: Microseconds in a second and in a day. A date is stored as microseconds since 1970 in UTC.
SECOND_US, DAY_US = 10**6, 86_400 * 10**6

#: Largest distance of a date from 1970 in seconds, some 10,000 years.
MAX_DATE_S = 3.2e11

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = _EPOCH.toordinal()

#: A number as JSON writes it: "007" and "1_000" are not numbers.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?")
_SECONDS = re.compile(r"[1-9][0-9]{8,10}(\.[0-9]+)?")
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2}))?)?")


def to_keyword(value: str | float) -> bytes:
    """Return the bytes of a keyword; numbers and booleans are written as in JSON. Raises ValueError."""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if not isinstance(value, str):
        value = str(int(value)) if value == int(value) and abs(value) < 2**63 else repr(value)
    return value.encode()


def to_number(value: str | float) -> float:
    """Return a number, or the number in a text.

    Raises ValueError for a number that float64 cannot hold, or a whole number that it would round.
    """
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            raise ValueError("it is not a number")
        value = float(value) if set(value) & set(".eE") else int(value)
    is_rounded = isinstance(value, int) and int(float(value)) != value
    if isinstance(value, bool) or not abs(value) < float("inf") or is_rounded:
        raise ValueError("it is not a number that float64 holds")
    return float(value)


def to_boolean(value: str | float) -> int:
    """Return 1 for true or "true", and 0 for false or "false"; case does not matter. Raises ValueError."""
    word = str(value).lower() if isinstance(value, bool | str) else ""
    if word not in ("true", "false"):
        raise ValueError("it is neither true nor false")
    return int(word == "true")


def to_date(value: str | float) -> int:
    """Return the first microsecond of a date. Raises ValueError."""
    return date_span(value)[0]


def date_span(value: str | float) -> tuple[int, int]:
    """Return the first microsecond of a date and the first one after the date, in microseconds since 1970.

    A date without a time is a whole day, month or year. A date with a time is in ISO 8601, in UTC unless it names
    its zone; a number, or a text of 9 to 11 digits without a leading 0, is in Unix seconds. Raises ValueError.
    """
    if isinstance(value, bool):
        raise ValueError("it is not a date")
    if isinstance(value, str) and _SECONDS.fullmatch(value):
        value = float(value)
    if not isinstance(value, str):
        if not abs(value) <= MAX_DATE_S:
            raise ValueError("it is not a time in Unix seconds")
        moment = round(value * SECOND_US)
        return moment, moment + 1
    if found := _DATE.fullmatch(value):
        year, month, day = (int(part) if part else None for part in found.groups())
        first = date(year or 0, 1 if month is None else month, 1 if day is None else day)
        num_days = 1 if day else monthrange(first.year, first.month)[1] if month else 365 + isleap(first.year)
    else:
        if "W" in value:
            raise ValueError("it is a date in a week, which is not read")
        at = datetime.fromisoformat(value)
        moment = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
        return moment, moment + (1 if len(value) > len("YYYYMMDD") else DAY_US)
    start = (first.toordinal() - _EPOCH_DAY) * DAY_US
    return start, start + num_days * DAY_US


#: The function for each kind that converts a value to its stored form.
CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "boolean": to_boolean,
    "number": to_number,
    "date": to_date,
    "keyword": to_keyword,
}


def kind_of(values: Iterable[str]) -> str:
    """Return the first kind in `CONVERTERS` that fits all of these strings; "stored" if none does."""
    values = list(values)
    return next((kind for kind in CONVERTERS if all(is_of(kind, value) for value in values)), "stored")


def is_of(kind: str, value: Any) -> bool:
    """Return True if a value can be of the kind."""
    try:
        CONVERTERS[kind](value)
    except ValueError:
        return False
    return True


def by_kind(kind: str, value: Any) -> Any:
    """Convert a string, or each string in a list, to the form that `shown` returns for the kind; other values stay."""
    if isinstance(value, list):
        return [by_kind(kind, one) for one in value]
    return shown(kind, CONVERTERS[kind](value)) if isinstance(value, str) and is_of(kind, value) else value


def shown(kind: str, term: Any) -> str | float | bool:
    """Return a stored value as people write it. A date is in ISO 8601 and UTC, without its time if that is midnight."""
    if kind == "keyword":
        return bytes(term).decode()
    if kind == "boolean":
        return bool(term)
    if kind == "number":
        number = float(term)
        return int(number) if number.is_integer() and abs(number) < 2**63 else number
    days, rest = divmod(int(term), DAY_US)
    day = date.fromordinal(min(max(days + _EPOCH_DAY, 1), date.max.toordinal())).isoformat()
    return day if not rest else f"{day}T{(_EPOCH + timedelta(microseconds=rest)).time().isoformat()}Z"
