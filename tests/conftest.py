"""The same ground for every test process, however it was started."""

import os
import signal

# One thread: otherwise each worker's linear algebra takes every core and they wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported

# A shell that starts tests in the background has Ctrl-C ignored; the tests of Ctrl-C send it themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)
