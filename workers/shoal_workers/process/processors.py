"""The number of a worker's processors, the instructions of this machine, and the priority of threads."""

import math
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

#: The file with the limit of the control group (cgroup, version 2).
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def quota(path: Path = _QUOTA) -> float | None:
    """Return the number of processors that the control group allows, or None without a limit."""
    limit, period = path.read_text().split() if path.exists() else ("max", "")
    return None if limit == "max" else int(limit) / int(period)


def available() -> float:
    """Return the number of processors that this process may use, by its affinity and its control group."""
    bound = float(len(_bound_to()))
    return min(bound, limit) if (limit := quota()) else bound


def group() -> str:
    """Return an id that is equal for all processes that may use the same processors of the same machine."""
    limited_by = _QUOTA.stat().st_ino if quota() else 0
    return blake2b(repr((machine_id(), _bound_to(), limited_by)).encode(), digest_size=8).hexdigest()


def _bound_to() -> list[int]:
    return sorted(os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1))


def threads_for(num_workers: int, processors: float) -> int:
    """Return the number of compute threads for each of `num_workers` workers that share `processors` processors."""
    return max(1, math.floor(processors / max(1, num_workers)))


def limit_native_threads(threads: int, num_workers: int) -> None:
    """Set the number of threads of native libraries, which must not be loaded yet; 0 means a worker's share."""
    number = str(threads or threads_for(num_workers, available()))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, number)


def machine_id() -> str:
    """Return an id that is equal for all processes and containers on this machine until its restart."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return boot_id.read_text().strip() if boot_id.exists() else f"{uuid.getnode():x}"


def has_bf16() -> bool:
    """Return True if the processor has instructions for matrix products in bfloat16."""
    return bool({"avx512_bf16", "amx_bf16"} & _flags())


def has_vnni() -> bool:
    """Return True if the processor sums products of 8-bit numbers in 32 bits, where 16 bits would overflow."""
    return bool({"avx512_vnni", "avx_vnni", "amx_int8"} & _flags())


def lacking(wanted: Sequence[str]) -> list[str]:
    """Return the wanted flags that the processor lacks, by Linux's names."""
    flags = _flags()
    return [name for name in wanted if name not in flags]


def _flags(about: Path = Path("/proc/cpuinfo")) -> set[str]:
    lines = about.read_text().splitlines() if about.exists() else []
    return set(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())


#: Niceness that is added for threads of low priority. Beside a thread of normal priority, such a thread gets a quarter
#: of a processor. With 10 it gets a tenth, and bulk jobs nearly stop if other programs keep all processors busy.
NICENESS = 5

T = TypeVar("T")


def at_low_priority(make: Callable[[], T]) -> T:
    """Return the result of `make`, called in a thread of low priority. On Linux, its threads inherit the priority."""
    with ThreadPoolExecutor(1, "low-priority", _lower) as thread:
        return thread.submit(make).result()


def _lower() -> None:
    """Lower the priority of this thread on Linux. On other systems, the call would affect the whole process."""
    if sys.platform == "linux":
        with suppress(OSError):  # the system may not allow it
            os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS))
