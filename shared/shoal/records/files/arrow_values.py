"""The values of Arrow's arrays: which types are read, and the memory that they take as Python's values.

Needs pyarrow.
"""

from typing import Any

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument
from shoal.records.record import Place


def num_bytes(batch: Any) -> int:
    """Return about the bytes that the values of a batch take when repeated ones are written out."""
    return sum(map(_num_bytes, batch.columns))


def _num_bytes(array: Any) -> int:
    from pyarrow import compute, types

    kind, least = array.type, 8 * len(array)
    if hasattr(array, "storage"):
        return _num_bytes(array.storage)
    if types.is_dictionary(kind):
        if not _is_text(kind.value_type):
            return max(least, int(array.nbytes))
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return least + int(compute.sum(lengths).as_py() or 0)
    if types.is_struct(kind):
        return least + sum(map(_num_bytes, array.flatten()))
    if types.is_nested(kind):
        return least + _num_bytes(array.flatten())
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # A view of a text is 16 bytes, of which the first 4 are its length.
        views = memoryview(array.buffers()[1]).cast("i")
        return least + sum(views[4 * array.offset : 4 * (array.offset + len(array)) : 4])
    return max(least, int(array.nbytes))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def check_types(schema: Any, place: Place) -> None:
    """Raise BadDocument for a column whose values may be repeated in ways of which the size is not known."""
    for field in schema:
        if not _is_readable(field.type):
            raise BadDocument(
                f"{place.at(1)}: the column {excerpt(field.name)} is of the type {excerpt(str(field.type))}, which is "
                "not read: convert it, or leave it out"
            )


def _is_readable(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return not types.is_nested(kind.value_type) and _is_readable(kind.value_type)
    if hasattr(kind, "storage_type"):
        return _is_readable(kind.storage_type)
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_struct, types.is_map)
    if types.is_nested(kind) and not any(test(kind) for test in lists):
        return False
    inner = [kind.field(n) for n in range(kind.num_fields)] if types.is_nested(kind) else []
    return not types.is_run_end_encoded(kind) and all(_is_readable(field.type) for field in inner)
