"""Whether the worker in this container is well, for `docker ps` and what watches it."""

import http.client
import sys
from collections.abc import Mapping

from specworker.front import PING
from specworker.settings import Settings

#: Seconds that an answer may take.
TIMEOUT = 5.0


def check(environment: Mapping[str, str]) -> int:
    """Ask the worker that `environment` describes. Returns 0 where it is well, else 1.

    A worker that takes its work from a queue or a file has no port to ask, and ends where
    it is not well.
    """
    settings, _ = Settings.read(environment)
    if settings.where not in ("pod", "lb"):
        sys.stdout.write(f"mode {settings.where}: it has no port to ask\n")
        return 0
    port = settings.health_port or settings.ports["PORT"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("GET", PING)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        sys.stdout.write(f"{PING} on port {port}: {error}\n")
        return 1
    finally:
        connection.close()
    sys.stdout.write(f"{PING} on port {port}: {status}\n")
    return 0 if status == 200 else 1
