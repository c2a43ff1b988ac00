"""Next step for an error of the operating system, for people."""

from __future__ import annotations

import errno


def write_advice(error: OSError) -> str:
    """Return what helps when a file or folder cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: free space there"
    if error.errno == errno.EROFS:
        return "the file system is mounted read-only: see the system log, then mount it again"
    return "this user must be able to write it"
