"""Fixtures for every test. Engine tests run grouped by the configuration they name."""

import json
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from specworker.main import LOCAL_DEFAULTS, PROCESS_DEFAULTS
from tests.clocks import Clock

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from specworker.engine import Engine
    from tests.engines import Rack
    from tests.machine import Making

for variable, value in (PROCESS_DEFAULTS | LOCAL_DEFAULTS).items():
    os.environ.setdefault(variable, value)

# Where tests run side by side, each process keeps to cores of its own, with all that it starts:
# an engine that starts in one would slow down what is measured in another.
if side := os.environ.get("PYTEST_XDIST_WORKER"):
    number, count = int(side.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    cores = sorted(os.sched_getaffinity(0))
    own = cores[number % len(cores) :: count]
    os.sched_setaffinity(0, own)
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(own[0])

#: The mark of a test that starts its engines itself.
OF_ITS_OWN = "of its own"
#: The configurations of engines, in the order in which they run. Those of one model run in one
#: process: all are compared with the first, which so runs once.
ENGINES = {
    "plain": "demo",
    "ngram": "demo",
    "ngram up to two": "demo",
    "self-draft": "demo",
    "self": "demo",
    "self-draft up to two": "demo",
    "medusa up to two": "demo",
    "suffix up to two": "demo",
    "tiny plain": "tiny",
    "tiny ngram": "tiny",
    "tiny draft": "tiny",
    "tiny probabilistic": "tiny",
    "tiny typical": "tiny",
    "tiny typical, sampled": "tiny",
    "eagle": "tiny",
    "eagle3": "tiny",
    "mtp": "tiny",
    "mlp_speculator up to two": "tiny",
}
#: The longest of what starts its engines itself, longest first; the rest follows.
LONG = ("test_engine_compare.py", "test_engine_tune.py", "test_engine_endpoint.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the tests of a model follow one another, engine by engine, in one process.

    Those without an engine come first; side by side they come last, being the shortest, so that
    no process is left to wait for another.
    """
    of_its_own = len(ENGINES)
    order = {engine: place for place, engine in enumerate(ENGINES)}
    order |= {name: of_its_own + place for place, name in enumerate(LONG)}
    order |= {OF_ITS_OWN: of_its_own + len(LONG), "": len(order) + 1 if side else -1}

    def engine_of(item: pytest.Item) -> str:
        marker = item.get_closest_marker("engine")
        return str(marker.args[0]) if marker else ""

    def place_of(item: pytest.Item) -> int:
        engine = engine_of(item)
        return order[item.path.name if engine == OF_ITS_OWN and item.path.name in LONG else engine]

    items.sort(key=place_of)
    for item in items:
        group = ENGINES.get(engine_of(item), item.path.name)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def log_level() -> None:
    """Building vLLM's application silences the root logger, for good."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    from specworker import demo_model

    return demo_model.prepare()


@pytest.fixture(scope="session")
def environments(
    demo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, dict[str, str]]:
    """The variables of each configuration."""
    from builder import adapters, heads, tiny
    from builder.mtp import mtp
    from tests import hubs, successors
    from tests.engines import NGRAM, UP_TO_TWO

    drafts = tmp_path_factory.mktemp("drafts")
    target = tiny.write(drafts / "tiny")
    other = tiny.write(drafts / "tiny-draft", layers=1, seed=1)
    padded = tiny.write(drafts / "tiny-padded", padding=8, layers=1, seed=1)
    adapter = adapters.lora(target, drafts / "adapter")
    medusa = heads.medusa(demo_folder, 3, drafts / "medusa")
    eagle = heads.eagle(target, drafts / "eagle")
    eagle3 = heads.eagle3(target, drafts / "eagle3", vocabulary=20, speculators=True)
    with_mtp = mtp(target, drafts / "mtp")
    successor = successors.target(drafts / "successor")
    mlp = successors.speculator(successor, drafts / "mlp", stages=4)
    # As the platform may leave them on a volume: under lower-cased names.
    cache = drafts / "hub"
    hubs.place(cache, "acme/target-1b", demo_folder)
    hubs.place(cache, "acme/my-eagle-draft", demo_folder)
    cached = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    volume = drafts / "volume"
    volume.mkdir()
    common = {
        "MODEL_NAME": str(demo_folder),
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "demo",
        # Identical text needs float32: with fewer bits the batch's shape changes the rounding.
        "DTYPE": "float32",
        "MAX_MODEL_LEN": "1024",
        "MAX_NUM_SEQS": "256",
        # A longer prompt takes several steps.
        "MAX_NUM_BATCHED_TOKENS": "512",
    }
    tools = {"ENABLE_AUTO_TOOL_CHOICE": "true", "TOOL_CALL_PARSER": "hermes"}
    tiny_draft = {"MODEL_NAME": str(target), "SPECULATIVE_MODEL": str(other)}
    typical = {"SPEC_DECODING_ACCEPTANCE_METHOD": "typical_acceptance_sampler"}
    with_adapter = {
        "MODEL_NAME": str(target),
        "ENABLE_LORA": "true",
        "MAX_LORA_RANK": str(adapters.RANK),
        # On its CPU backend vLLM gives requests without an adapter what is in the last place.
        "MAX_LORAS": "2",
        "LORA_MODULES": json.dumps({"name": "adapter", "path": str(adapter)}),
    }
    steered = {
        "SPECULATIVE_ADAPTIVE": "true",
        "SPECULATIVE_MAX_PROMPT_LEN": "150",
        "NUM_SPECULATIVE_TOKENS": "6",
        "MAX_NUM_SEQS": "32",
        # So little that requests are preempted: two thousand tokens.
        "KV_CACHE_MEMORY_BYTES": str(2 * 1024**2),
    }
    own = {
        "plain": tools,
        "ngram": NGRAM | tools,
        "ngram up to two": NGRAM | UP_TO_TWO,
        "self-draft": cached
        | {
            "SPECULATIVE_MODEL": "Acme/My-EAGLE-draft",
            "NUM_SPECULATIVE_TOKENS": "8",
            "SPECULATIVE_MAX_MODEL_LEN": "256",
            "SPECULATIVE_UNSUPPORTED": "drop",
            "OVERRIDE_GENERATION_CONFIG": '{"min_p": 0.05}',
        }
        | tools,
        "self": cached
        | {
            "MODEL_NAME": "Acme/Target-1B",
            "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "",
            "SPECULATIVE_METHOD": "self",
            "NUM_SPECULATIVE_TOKENS": "3",
            "BASE_PATH": str(volume),
        },
        "self-draft up to two": {
            "SPECULATIVE_MODEL": str(demo_folder),
            "NUM_SPECULATIVE_TOKENS": "3",
            # Shorter than the target's: some requests are beyond the draft's window.
            "SPECULATIVE_MAX_MODEL_LEN": "512",
        }
        | UP_TO_TWO,
        "medusa up to two": {"SPECULATIVE_MODEL": str(medusa)} | UP_TO_TWO,
        "suffix up to two": {"SPECULATIVE_METHOD": "suffix"} | UP_TO_TWO,
        "tiny plain": {"MODEL_NAME": str(target)},
        "tiny ngram": {"MODEL_NAME": str(target)} | NGRAM | {"NGRAM_PROMPT_LOOKUP_MIN": "1"},
        "tiny draft": tiny_draft | {"SPECULATIVE_MODEL": str(padded)},
        "tiny probabilistic": tiny_draft | {"SPECULATIVE_DRAFT_SAMPLE_METHOD": "probabilistic"},
        "tiny typical": tiny_draft | typical,
        "tiny typical, sampled": tiny_draft | typical | {"TYPICAL_ACCEPTANCE_RECOVERY": "sample"},
        "tiny with an adapter": with_adapter,
        "tiny steered": with_adapter
        | steered
        | {"NGRAM_PROMPT_LOOKUP_MIN": "1", "NGRAM_PROMPT_LOOKUP_MAX": "3"},
        "tiny steered, with a draft": with_adapter | steered | {"SPECULATIVE_MODEL": str(other)},
        "eagle": {"MODEL_NAME": str(target), "SPECULATIVE_MODEL": str(eagle)},
        "eagle3": {"MODEL_NAME": str(target), "SPECULATIVE_MODEL": str(eagle3)},
        "mtp": {"MODEL_NAME": str(with_mtp), "SPECULATIVE_MODEL": str(with_mtp)},
        "mlp_speculator up to two": {
            "MODEL_NAME": str(successor),
            "SPECULATIVE_MODEL": str(mlp),
            "NUM_SPECULATIVE_TOKENS": "3",
        }
        | UP_TO_TWO,
    }
    return {name: common | own[name] for name in own}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from builder import tiny

    return tiny.write(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def machine(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["Making"]:
    """Makes schedulers without a model."""
    from vllm.v1.engine.core import EngineCore

    from tests.machine import Machine

    # A scheduler that is made corrects the core of its process, here for the test alone.
    monkeypatch.setattr(EngineCore, "post_step", EngineCore.post_step)
    made: list[Machine] = []

    def make(**options: Any) -> Machine:
        made.append(Machine(tiny_folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.scheduler.shutdown()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def rack(environments: Mapping[str, Mapping[str, str]]) -> AsyncIterator["Rack"]:
    from tests.engines import Rack

    engines = Rack(environments)
    yield engines
    await engines.close()


@pytest_asyncio.fixture(loop_scope="session")
async def engine(request: pytest.FixtureRequest, rack: "Rack") -> "Engine":
    """The engine that the test's marker names."""
    marker = request.node.get_closest_marker("engine")
    assert marker is not None, "mark the test with the engine it needs"
    return await rack.get(marker.args[0])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator["Browser"]:
    from tests import browsers

    async with browsers.chromium() as running:
        yield running
