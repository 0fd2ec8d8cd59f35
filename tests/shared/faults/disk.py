"""Tests do not wait for the disk, because their files need not survive a power failure."""

import ctypes
import platform
import struct
import sys

#: The system's number for the processor, and its numbers of fsync, fdatasync and sync_file_range.
_CALLS = {"x86_64": (0xC000003E, (74, 75, 277)), "aarch64": (0xC00000B7, (82, 83, 84))}

#: Instructions of linux/filter.h: load a word, compare it, return. The words come from `struct seccomp_data`.
_LOAD, _COMPARE, _RETURN = 0x20, 0x15, 0x06
_CALL_AT, _PROCESSOR_AT = 0, 4

#: Results of a filter, from linux/seccomp.h: run the call, or return 0 without running it.
_ALLOW, _PRETEND = 0x7FFF0000, 0x00050000

#: Options of prctl, from linux/prctl.h.
_SET_SECCOMP, _SET_NO_NEW_PRIVILEGES, _FILTER = 22, 38, 2


class _Program(ctypes.Structure):
    _fields_ = (("num_instructions", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def ignore_syncs() -> bool:
    """Let the system skip calls that wait for the disk, in this thread and its children; return False if it cannot.

    Other programs may keep a disk busy for minutes, and a test that syncs a file would wait for them.
    """
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return False
    instructions = ctypes.create_string_buffer(_filter(*_CALLS[platform.machine()]))
    program = _Program(len(instructions) // 8, ctypes.addressof(instructions))
    system = ctypes.CDLL(None)
    system.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return bool(system.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program)) == 0)


def _filter(processor: int, calls: tuple[int, ...]) -> bytes:
    """Return the instructions of a filter that skips these calls."""
    comparisons = [(_COMPARE, len(calls) - n, 0, call) for n, call in enumerate(calls)]
    instructions = [
        (_LOAD, 0, 0, _PROCESSOR_AT),
        (_COMPARE, 0, len(calls) + 1, processor),
        (_LOAD, 0, 0, _CALL_AT),
        *comparisons,
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _PRETEND),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
