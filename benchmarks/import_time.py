"""How long `import ltrag_plugins` takes: fresh processes, beyond the interpreter's own start.

Run: python benchmarks/import_time.py. Exits with 1 where the median processor time is not
under 50 ms; on an idle machine the wall time is the same, on a busy one it measures the others.
"""

import resource
import statistics
import subprocess
import sys
import time

RUNS = 15
BOUND = 50.0  # ms


def milliseconds(code: str) -> tuple[float, float]:
    """Wall and processor time of a fresh interpreter that runs the code."""
    busy, start = children(), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - start) * 1000, (children() - busy) * 1000


def children() -> float:
    """Seconds of processor time of the processes that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    milliseconds("import ltrag_plugins")  # compiles, and warms the disk cache
    pairs = [(milliseconds("import ltrag_plugins"), milliseconds("pass")) for _ in range(RUNS)]
    medians = []
    for i, clock in enumerate(("wall", "processor")):
        bare = statistics.median(without[i] for _, without in pairs)
        more = statistics.median(package[i] - without[i] for package, without in pairs)
        print(f"{clock}: interpreter {bare:.1f} ms, import ltrag_plugins {more:.1f} ms more")
        medians.append(more)
    kept = medians[-1] < BOUND
    print(f"bound: {BOUND:g} ms of processor time, {'kept' if kept else 'NOT kept'}")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
