"""Requests to OCSP responders over HTTP (RFC 6960 appendix A). They block.

Only a certificate or the operator names a responder: redirects are refused.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Final
from urllib.parse import urlsplit

from edge.broker.listeners.ocsp.answer import OcspError
from edge.broker.listeners.ocsp.limits import RESPONSE_BYTES_MAX, RESPONSE_S_MAX
from edge.broker.security.deadline_requests import deadline_opener

_READ_BYTES: Final = 16_384
_SCHEMES: Final = ("http", "https")


def ask_responder(url: str, request: bytes, within_s: float = RESPONSE_S_MAX) -> bytes:
    """Post a request and return the response, which has to be complete within a time. Blocks. Raises OcspError."""
    try:
        if urlsplit(url).scheme not in _SCHEMES:
            raise OcspError(f"{url[:200]}: it is not a web address")
        fields = {"Content-Type": "application/ocsp-request", "Accept": "application/ocsp-response"}
        posted = urllib.request.Request(url, request, fields)  # noqa: S310 - the scheme is checked
        with deadline_opener().open(posted, timeout=within_s) as answer:
            body = b""
            while part := answer.read1(_READ_BYTES):
                body += part
                if len(body) > RESPONSE_BYTES_MAX:
                    raise OcspError(f"{url}: more than {RESPONSE_BYTES_MAX} bytes")
            return body
    except urllib.error.HTTPError as error:
        error.close()
        raise OcspError(f"{url}: status {error.code}") from None
    except urllib.error.URLError as error:
        raise OcspError(f"{url}: {error.reason}") from None
    except OSError as error:
        raise OcspError(f"{url}: {error}") from None
    except (ValueError, http.client.HTTPException) as error:
        raise OcspError(f"{url[:200]}: {error}") from None
