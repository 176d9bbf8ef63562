"""What a sandbox may refuse: tests of it are skipped by name there."""

import os
import unittest


def _shares_memory():
    try:
        os.close(os.memfd_create("sandbox"))
    except OSError:
        return False
    return True


needs_shared_memory = unittest.skipUnless(_shares_memory(), "shared memory (memfd) is refused here")
