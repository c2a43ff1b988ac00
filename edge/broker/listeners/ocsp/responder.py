"""Requests to OCSP responders over HTTP (RFC 6960 appendix A). They block."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import urlsplit

from edge.broker.listeners.ocsp.answer import OcspError
from edge.broker.listeners.ocsp.limits import RESPONSE_BYTES_MAX, RESPONSE_S_MAX

_READ_BYTES: Final = 16_384
_SCHEMES: Final = ("http", "https")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: only a certificate or the operator names a responder."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask_responder(url: str, request: bytes) -> bytes:
    """Post a request and return the response. Blocks for `RESPONSE_S_MAX` at most per read. Raises OcspError."""
    deadline = time.monotonic() + RESPONSE_S_MAX
    try:
        if urlsplit(url).scheme not in _SCHEMES:
            raise OcspError(f"{url[:200]}: it is not a web address")
        fields = {"Content-Type": "application/ocsp-request", "Accept": "application/ocsp-response"}
        posted = urllib.request.Request(url, request, fields)  # noqa: S310 - the scheme is checked
        opener = urllib.request.build_opener(_NoRedirect())
        with opener.open(posted, timeout=RESPONSE_S_MAX) as answer:
            body = b""
            while part := answer.read1(_READ_BYTES):
                body += part
                if len(body) > RESPONSE_BYTES_MAX:
                    raise OcspError(f"{url}: more than {RESPONSE_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise OcspError(f"{url}: incomplete after {RESPONSE_S_MAX:g} s")
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
