"""Processors: the number that a worker may use, their abilities, and the priority of threads."""

import math
import os
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

#: Files with the limits of the control group, in version 2 and in version 1.
_QUOTA_V2 = Path("/sys/fs/cgroup/cpu.max")
_QUOTA_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_PERIOD_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")

#: The abilities that the engine avx512 needs, as Linux names them.
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16")


def quota(v2: Path = _QUOTA_V2, v1: Path = _QUOTA_V1, period_v1: Path = _PERIOD_V1) -> float | None:
    """Return the processors that the control group grants; None without a limit."""
    try:
        if v2.exists():
            limit, period = v2.read_text().split()
        else:
            limit, period = v1.read_text().strip(), period_v1.read_text().strip()
    except OSError:
        return None
    return None if limit in ("max", "-1") else int(limit) / int(period)


def available() -> float:
    """Return the processors that this process may use: those it is bound to, or fewer if the control group says so."""
    bound = float(len(_bound_to()))
    return min(bound, limit) if (limit := quota()) else bound


def group() -> str:
    """Return an id that is shared by the processes of one machine that may use the same processors."""
    limited_by = next((file.stat().st_ino for file in (_QUOTA_V2, _QUOTA_V1) if file.exists()), 0) if quota() else 0
    return blake2b(repr((machine_id(), _bound_to(), limited_by)).encode(), digest_size=8).hexdigest()


def _bound_to() -> list[int]:
    return sorted(os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1))


def threads_for(num_workers: int, processors: float) -> int:
    """Return the compute threads for each of `num_workers` workers that share `processors`."""
    return max(1, math.floor(processors / max(1, num_workers)))


def limit_native_threads(threads: int, num_workers: int) -> None:
    """Set the threads of native libraries, before these are loaded; 0 stands for a worker's share."""
    number = str(threads or threads_for(num_workers, available()))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, number)


def machine_id() -> str:
    """Return an id that all processes and containers on one running machine share."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return boot_id.read_text().strip() if boot_id.exists() else f"{uuid.getnode():x}"


def has_bf16() -> bool:
    """Return True if the processor multiplies bfloat16 matrices itself."""
    return bool({"avx512_bf16", "amx_bf16"} & _flags())


def has_vnni() -> bool:
    """Return True if the processor adds up products of 8 bits in 32 bits, so that no sum is cut off at 16."""
    return bool({"avx512_vnni", "avx_vnni", "amx_int8"} & _flags())


def lacking_for_avx512() -> list[str]:
    """Return the abilities that the processor lacks for the engine avx512, as Linux names them."""
    flags = _flags()
    return [name for name in _AVX512 if name not in flags]


def has_amx() -> bool:
    """Return True if the processor has tiles for matrix products, which OpenVINO uses."""
    return bool({"amx_bf16", "amx_int8"} & _flags())


def _flags() -> set[str]:
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    return set(next((line for line in lines if line.startswith("flags")), "").split())


#: How much nicer threads of low priority are. Beside a thread of the usual priority they have a quarter of a processor:
#: with a niceness of 10 it would be a tenth, and bulk nearly stops where other programs keep all processors busy.
NICENESS = 5

T = TypeVar("T")


def at_low_priority(make: Callable[[], T]) -> T:
    """Return what `make` returns; on Linux all threads that it starts inherit the low priority of its own thread."""
    with ThreadPoolExecutor(1, "low-priority", _lower) as thread:
        return thread.submit(make).result()


def _lower() -> None:
    """Lower the priority of this thread; elsewhere than on Linux it would be the whole process's."""
    if sys.platform == "linux":
        with suppress(OSError):  # where the system does not allow it
            os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS))
