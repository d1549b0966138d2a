"""The frequency of the time stamp counter. An emulated machine sees the host's, and measures it wrongly when it has to share a
processor while it boots: its clock then runs several times too fast, and everything in it times out early."""

import ctypes
import functools
import mmap
import time

RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3".replace(" ", ""))  # rdtsc; shl rdx, 32; or rax, rdx; ret
SPAN = 0.2


def _sample(counter):
    """(seconds, ticks) of one moment; of several tries the one that was least disturbed."""
    tries = []
    for _ in range(50):
        before = time.monotonic_ns()
        ticks = counter()
        tries.append((time.monotonic_ns() - before, before, ticks))
    took, before, ticks = min(tries)
    return (before + took / 2) / 1e9, ticks


@functools.lru_cache(maxsize=None)
def tsc_khz():
    """The measured frequency, or None where a process may not have code of its own making."""
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    code.write(RDTSC)
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    start, first = _sample(counter)
    time.sleep(SPAN)
    end, last = _sample(counter)
    return round((last - first) / (end - start) / 1000)


def kernel_args(kvm):
    """What tells a guest the frequency; KVM does it by itself."""
    khz = None if kvm else tsc_khz()
    return f" tsc_early_khz={khz}" if khz else ""
