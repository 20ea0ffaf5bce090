"""The command line: one function per command. Parse, call, print."""

import os

# Nothing here multiplies matrices. NumPy's library for that starts a thread per core all the same,
# and each of them spins for a tenth of a second.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
