"""The key that a request must bring, where the server's address is public."""

import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specworker.errors import RequestError
from specworker.settings import NO_KEY, Settings

logger = logging.getLogger(__name__)

FILE = "api-key"
#: How OpenAI's, Azure's and Anthropic's clients send a key.
KEY_HEADERS = (b"api-key", b"x-api-key")


class ApiKey:
    """ASGI middleware: refuses who does not bring the key, and everyone until it is known."""

    def __init__(self, app: ASGIApp, without: Iterable[str]) -> None:
        """`without` are the paths that need no key."""
        self._app = app
        self._without = frozenset(without)
        self._digest: bytes | None = None
        self._is_open = False
        self._error = RequestError(
            "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY'.",
            status=401,
            kind="AuthenticationError",
        )
        self._too_early = RequestError(
            "The server is starting. Try again in a second.",
            status=503,
            kind="ServiceUnavailableError",
        )

    def accept(self, key: str | None) -> None:
        """Let in who brings `key`; everyone where there is none."""
        self._is_open = key is None
        self._digest = None if key is None else _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._is_open or scope["path"] in self._without or self._is_let_in(scope):
            await self._app(scope, receive, send)
            return
        if self._digest is None:
            error, headers = self._too_early, {"retry-after": "1"}
        else:
            error, headers = self._error, {"www-authenticate": _challenge(scope)}
        await JSONResponse(error.body(), error.status, headers)(scope, receive, send)

    def _is_let_in(self, scope: Scope) -> bool:
        if self._digest is None:
            return False
        # Every key is compared, and digests of one length, so that the time tells nothing.
        found = [hmac.compare_digest(_digest(key), self._digest) for key in _keys(scope["headers"])]
        return any(found) or _is_preflight(scope)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _keys(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The keys that a request brings."""
    for name, value in headers:
        if name in KEY_HEADERS:
            yield value
        elif name == b"authorization":
            scheme, _, text = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield text.strip()
            elif scheme.lower() == b"basic":  # a browser, which asks its user for name and key
                yield _password(text)


def _password(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _is_preflight(scope: Scope) -> bool:
    """Whether a browser asks what a page elsewhere may send, which it does without a key."""
    if scope.get("method") != "OPTIONS":
        return False
    return b"access-control-request-method" in dict(scope["headers"])


def _challenge(scope: Scope) -> str:
    """What a browser is told: to ask its user, but only for a page that the user opens."""
    opens_page = b"text/html" in dict(scope["headers"]).get(b"accept", b"")
    return 'Basic realm="the API key is the password"' if opens_page else "Bearer"


def of(settings: Settings, folders: Sequence[Path]) -> str | None:
    """The key that requests must bring; None for none.

    Args:
        settings: what is set.
        folders: where a pod, whose address is public, may keep a key that it made, the place
            to be preferred first.
    """
    if settings.key == NO_KEY:
        logger.warning("API_KEY=none: WHOEVER FINDS THIS SERVER CAN USE IT, AND CHANGE K")
        return None
    if settings.key or settings.where != "pod":
        return settings.key
    return stored(folders)


def stored(folders: Sequence[Path]) -> str:
    """The key of an earlier start, else a new one, which is kept and shown.

    Args:
        folders: where the key may be kept, the place to be preferred first.
    """
    for folder in folders:
        try:
            key, is_new = _kept(folder / FILE)
        except OSError as error:
            logger.warning("no API key can be kept in %s (%s)", folder, error.strerror or error)
            continue
        if is_new:
            _show(key, f"kept in {folder / FILE} for the next start")
        else:
            logger.info("API_KEY is not set: the key in %s is asked for", folder / FILE)
        return key
    key = _new()
    _show(key, "the next start makes another, since it could not be kept")
    return key


def _kept(file: Path) -> tuple[str, bool]:
    """The key in `file`, which is made if need be, and whether it was.

    Raises:
        OSError: the file can be neither read nor written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    if key := _read(file):
        return key, False
    key = _new()
    beside = file.with_name(f"{FILE}.{secrets.token_hex(4)}")
    try:
        with open(beside, "x", opener=_owners_alone) as written:
            written.write(f"{key}\n")
        os.link(beside, file)  # whole or not at all, and only one of two workers that start
    except FileExistsError:
        return _read(file), False
    finally:
        beside.unlink(missing_ok=True)
    return key, True


def _owners_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read(file: Path) -> str:
    """The key in `file`, which is then for its owner alone; empty for no file."""
    try:
        key = file.read_text().strip()
    except FileNotFoundError:
        return ""
    if not key:
        file.unlink()
    elif file.stat().st_mode & 0o077:
        file.chmod(0o600)
    return key


def _new() -> str:
    return f"sk-{secrets.token_urlsafe(32)}"


def _show(key: str, remark: str) -> None:
    """Tell the operator a new key: the only line that ever holds one."""
    logger.warning("API_KEY is not set. Requests must bring this key (%s): %s", remark, key)
