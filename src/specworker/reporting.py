"""Says while an engine runs what its speculation does: in the log, and to Prometheus."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from specworker import gauges, overview
from specworker.adaptation import Adaptation
from specworker.live import LONGEST, Live

logger = logging.getLogger(__name__)

#: Seconds between two lines in the log, between two looks at the gauges, and at a K that adapts.
LOG_SECONDS, GAUGE_SECONDS, ADAPTING_SECONDS = LONGEST, 1.0, 1.0


#: What an engine knows of a K that adapts; None where it does not.
Asking = Callable[[], Awaitable[Mapping[str, Any] | None]]


async def report(live: Live, model: str, adapting: Asking) -> None:
    """Report until cancelled, and follow a K that adapts."""
    await asyncio.gather(_say(live, model), _follow(live, adapting))


async def _say(live: Live, model: str) -> None:
    """Say how it stands: a line a minute while anything is generated, gauges always."""
    reported, due = 0, LOG_SECONDS
    while True:
        gauges.show(live, model)
        await asyncio.sleep(GAUGE_SECONDS)
        due -= GAUGE_SECONDS
        if due > 0:
            continue
        due = LOG_SECONDS
        if (generated := live.total.generated) > reported:
            reported = generated
            logger.info("%s", overview.line(live))


async def _follow(live: Live, adapting: Asking) -> None:
    """Follow a K that adapts, as long as the engine answers.

    It does between two steps. Only this waits for it, and an engine that idles is left alone:
    what it knew last still holds.
    """
    heard = -1
    while True:
        await asyncio.sleep(ADAPTING_SECONDS)
        if live.adaptation is None or live.total.generated == heard:
            continue
        heard = live.total.generated
        try:
            state = await adapting()
        except Exception:
            logger.warning("what K adapts to is shown no more, the engine fails", exc_info=True)
            return
        if state:
            live.hear(Adaptation.told(state))
