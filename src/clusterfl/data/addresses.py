"""Web addresses: how they are combined and shown in messages, and which are safe.

A mirror's address may contain a user and a password, or a token after a question mark. These are sent to that server
only, and appear in no message.
"""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

from ..errors import UserError


def is_address(text: str) -> bool:
    """Return whether a text is an address rather than a folder."""
    return text.lower().startswith(("http://", "https://"))


def shown(text: str) -> str:
    """Return an address without parts that may be secret; a folder is returned as it is.

    >>> shown("https://me:word@host/data?token=1")
    'https://***@host/data?***'
    """
    hidden = re.sub(r"(?<=://).*@", "***@", text, flags=re.DOTALL)
    return re.sub(r"[?#].*", "?***", hidden, flags=re.DOTALL) if "://" in text else text


def secret(text: str) -> bool:
    """Return whether an address contains something that may be secret."""
    return shown(text) != text


def beside(address: str, place: str) -> str:
    """Return the address of a place under another address; the query after the question mark is kept."""
    head, mark, query = address.partition("?")
    return f"{head.rstrip('/')}/{quote(place)}{mark}{query}"


def is_private(address: str) -> bool:
    """Return whether nobody on the way can read or change a transfer: by HTTPS, or on this machine."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    return parts.scheme == "https" or host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d+){3}", host))


def check(address: str) -> None:
    """Refuse an invalid address, or one that would send a password where others can read it.

    Raises
    ------
    UserError
        Says what is wrong, without secrets.
    """
    try:
        parts = urlsplit(address)
        wrong = not parts.hostname or parts.port == 0 or re.search(r"[\x00-\x20\x7f]", address)
    except ValueError:
        wrong = True
    if wrong:
        raise UserError(
            f"the address '{shown(address)}' has no host, a wrong port or a blank; write it as https://host/folder"
        )
    if secret(address) and not is_private(address):
        raise UserError(
            f"the address '{shown(address)}' has a password or a token, which http:// would send for all to read; use "
            "https://"
        )
