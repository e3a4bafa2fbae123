"""What `import tf_lamb` costs: a fresh interpreter with and without it, in turn, medians.

python benchmarks/import_time.py | tee benchmarks/logs/import_time.log
"""

import platform
import statistics
import subprocess
import sys
import time


def seconds(code):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main():
    with_it, without = [], []
    for _ in range(21):
        without.append(seconds("pass"))
        with_it.append(seconds("import tf_lamb"))
    print(f"Python {platform.python_version()}, {platform.machine()}, 21 runs in turn")
    print(f"interpreter alone      median {statistics.median(without):.4f} s")
    print(f"with import tf_lamb    median {statistics.median(with_it):.4f} s")
    print(f"difference of medians  {statistics.median(with_it) - statistics.median(without):.4f} s")


if __name__ == "__main__":
    main()
