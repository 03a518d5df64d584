"""Asking a web address: passwords go to that server only, and HTTPS isn't left for HTTP."""

from __future__ import annotations

import base64
import urllib.request
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ..errors import UserError
from .addresses import is_private, shown


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirection to HTTPS only, or to this machine from itself."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if is_private(req.full_url) and not is_private(newurl):
            raise UserError(
                f"{shown(req.full_url)} leads on to {shown(newurl)}, which isn't https://: whoever is on the way "
                "could change the file; fetch it from another place"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def ask(address: str, headers: dict[str, str], timeout: float) -> Any:
    """Ask for what is at an address and return the reply; `timeout` in seconds without a byte."""
    parts = urlsplit(address)
    request = urllib.request.Request(
        urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="")), headers=headers
    )
    if parts.username is not None:
        word = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        # Not carried along to where the server sends us.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(word.encode()).decode()}")
    return urllib.request.build_opener(_Redirects).open(request, timeout=timeout)
