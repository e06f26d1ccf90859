"""One thread a test process: otherwise each worker's linear algebra takes every core and they wait for one another."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported
