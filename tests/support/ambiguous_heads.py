"""HTTP heads that two programs could read in two ways."""

from __future__ import annotations

AMBIGUOUS = {
    "CL.TE": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    "TE.CL": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n",
    "TE.TE": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "TE with a word before": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n",
    "TE of another kind": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
    "TE with a space before its colon": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "TE in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "the same length twice": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\na",
    "a list of lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\na",
    "a negative length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\na",
    "a signed length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na",
    "a length in hexadecimal": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x1\r\n\r\na",
    "a length of thirty digits": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\na",
    "a folded line": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "a folded length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n 1\r\n\r\na",
    "bare LF": b"GET / HTTP/1.1\nHost: x\n\n",
    "bare LF in the middle": b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "bare LF at the end": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\nGET /x HTTP/1.1\r\n\r\n",
    "bare CR": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n",
    "a null byte": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n",
    "no name": b"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\nA: b\r\n\r\n",
    "another version": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "a line before the request": b"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a tab in the request line": b"GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n",
}
