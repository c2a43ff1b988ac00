"""Next steps for errors of the operating system."""

from __future__ import annotations

import errno


def write_advice(error: OSError) -> str:
    """Return the next step when a file or folder cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: free space there"
    if error.errno == errno.EROFS:
        return "the file system is mounted read-only: see the system log, then mount it again"
    return "give this user write access"
