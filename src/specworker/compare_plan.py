"""What a comparison measures: from options and variables to trials."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from specworker import measurement, provenance, variants
from specworker.errors import ConfigurationError
from specworker.measured import OFF
from specworker.measured_server import MeasuredServer
from specworker.measurement import Measurement
from specworker.places import Place
from specworker.trials import Arm, Manner, Trial
from specworker.values import text_of
from specworker.variants import Variant
from specworker.workloads import Workload

#: What vLLM takes of a GPU where GPU_MEMORY_UTILIZATION is not set.
GPU_SHARE = 0.92


@dataclass(frozen=True, kw_only=True)
class Plan(Measurement):
    """What is measured.

    Attributes:
        trials: what takes turns.
        settings: what a variant is, in a line, by its name.
    """

    trials: tuple[Trial, ...]
    settings: Mapping[str, str]

    def as_object(self) -> dict[str, Any]:
        """What a run must have in common with one that it goes on with, as JSON."""
        return {**self.asked, "variants": dict(self.settings)}


async def of(options: Namespace, environment: Mapping[str, str]) -> Plan:
    """The plan of a comparison. Servers that run are looked at; none is started.

    Raises:
        ConfigurationError: with a line for each problem.
        MeasuringError: a server that is to be measured cannot be.
    """
    workload, manner = measurement.workload_of(options), measurement.manner_of(options)
    if options.url:
        return await _of_servers(options, environment, workload, manner)
    if options.off_url:
        raise ConfigurationError(["--off-url: is for --url; allowed: both"])
    own = variants.of(environment, options.variants, is_warm=options.warm)
    apart = options.off == "engine"
    plain = variants.without(own[0].environment)
    served = plain.get("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "that of VLLM_CONFIG_FILE")
    return Plan(
        model=text_of(environment, "MODEL_NAME") or served,
        workload=workload,
        manner=manner,
        seed=options.seed,
        notes=(*workload.notes, *(note for one in own for note in one.notes)),
        trials=tuple(_trial(one, plain if apart else None) for one in own),
        settings={one.name: _settings(one) for one in own} | {OFF: _off(apart=apart)},
    )


def _trial(variant: Variant, plain: Mapping[str, str] | None) -> Trial:
    """A variant and `off`: in the same engine, or with another one beside it."""
    if plain is None:
        return Trial.of_engine(variant.name, variant.environment, {OFF: 0, variant.name: None})
    arms = (Arm(OFF, place=0), Arm(variant.name, place=1))
    return Trial(variant.name, arms, at_once(plain, variant.environment))


def at_once(*environments: Mapping[str, str]) -> tuple[Place, ...]:
    """Workers that live at once; of a GPU's memory each takes its part."""
    share, count = {}, len(environments)
    if count > 1 and provenance.has_gpu() and not text_of(environments[0], "KV_CACHE_MEMORY_BYTES"):
        whole = float(text_of(environments[0], "GPU_MEMORY_UTILIZATION") or GPU_SHARE)
        share = {"GPU_MEMORY_UTILIZATION": f"{whole / count:.3f}"}
    return tuple(Place({**one, **share}) for one in environments)


def _settings(variant: Variant) -> str:
    return json.dumps(variant.config, ensure_ascii=False)


def _off(*, apart: bool) -> str:
    return "an engine without speculation beside it" if apart else "K = 0 in the same engine"


async def _of_servers(
    options: Namespace, environment: Mapping[str, str], workload: Workload, manner: Manner
) -> Plan:
    """The plan for servers that run."""
    if options.variants or options.off == "engine":
        raise ConfigurationError(
            ["--url: a server that runs is measured as it is; allowed: no --with, no --off engine"]
        )
    key = environment.get(options.api_key_from, "")
    url = _base("--url", options.url)
    server = MeasuredServer.of(url, key)
    await server.look()
    method = str((server.overview or {}).get("method") or "on")
    places: tuple[Place, ...] = (Place(url=url, key=key),)
    if options.off_url:
        places = (Place(url=_base("--off-url", options.off_url), key=key), *places)
        arms: tuple[Arm, ...] = (Arm(OFF, place=0), Arm(method, place=1))
        off = f"the server at {places[0].url}"
    elif server.largest:
        speculates = server.initial is not None and server.initial.tokens
        arms = (Arm(OFF, 0), Arm(method, None if speculates else server.largest))
        off = "K = 0 in the same engine"
    else:
        raise ConfigurationError(
            [
                f"--url {url}: K cannot be changed there, so that it cannot be measured without "
                "speculation; allowed: a worker of this project that speculates, or --off-url "
                "with a server without speculation"
            ]
        )
    settings = {method: f"the server at {url}, {server.initial}", OFF: off}
    if server.overview is None:
        settings[method] = f"the server at {url}"
    return Plan(
        model=server.model,
        workload=workload,
        manner=manner,
        seed=options.seed,
        notes=workload.notes,
        trials=(Trial(method, arms, places),),
        settings=settings,
    )


def _base(option: str, url: str) -> str:
    """A server's address without `/v1`.

    Raises:
        ConfigurationError: it is none, or has a password in it.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigurationError(
            [f"{option}: is no address of a server; allowed: http://HOST:PORT, without a password"]
        )
    return url.rstrip("/").removesuffix("/v1")


def lines(plan: Plan) -> Sequence[str]:
    """The plan as a person reads it."""
    return [
        *plan.lines,
        *(f"variant {name}: {text}" for name, text in plan.settings.items()),
        f"rounds of each variant at each: {plan.manner.rounds}, and one to warm up",
    ]
