"""Freed memory: kept for reuse by a process that asks for it, and returned to the system when it is released."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

HALF_FREED = """
import re
from pathlib import Path

from axml_ray.core.memory import keep_freed_memory, release_freed_memory

def resident():
    return int(re.search(r"^VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text(), re.M)[1]) / 1024

keep_freed_memory()
blocks = [bytearray(b"1") * (1 << 20) for _ in range(200)]
full = resident()
del blocks[::2]
print(full - resident())
release_freed_memory()
print(full - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_between_used_blocks_is_kept_until_it_is_released() -> None:
    done = subprocess.run([sys.executable, "-c", HALF_FREED], check=True, capture_output=True, text=True)
    kept, released = map(float, done.stdout.split())  # MiB of 100
    assert kept < 10 and released > 90
