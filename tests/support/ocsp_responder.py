"""`openssl ocsp` as the responder of a test's authority."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, Self

from tests.support.certificates import Authority, Issued
from tests.support.processes import free_port, wait_until

START_S: Final = 30.0
LISTEN: Final = "0A"
"""State of a socket that listens, in /proc/net/tcp."""


class OcspResponder:
    """Answers while it is entered; may be entered again."""

    def __init__(self, authority: Authority) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self._authority = authority
        self._process: subprocess.Popen[bytes] | None = None
        self.signer: Issued | None = None
        """Certificate that signs the responses."""

    def __enter__(self) -> Self:
        signer = self.signer or self._authority.issue("ocsp responder", file="ocsp", usage="OCSPSigning")
        self.signer = signer
        command = ["openssl", "ocsp", "-port", str(self.port), "-index", self._authority.index, "-ignore_err"]
        command += ["-CA", self._authority.certificate, "-rsigner", signer.certificate, "-rkey", signer.key]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # A connection without a request, as a probe, would block it: it serves one at a time.
        wait_until(self._listens, timeout_s=START_S, what="the responder listens")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _listens(self) -> bool:
        """Return whether a socket of this machine listens on the port (proc(5))."""
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        more = (line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:])
        wanted = f":{self.port:04X}"
        return any(row[1].endswith(wanted) and row[3] == LISTEN for row in (*rows, *more))
