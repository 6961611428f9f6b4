"""Fixtures for every test. Engine tests run grouped by the configuration they name."""

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from specworker.main import LOCAL_DEFAULTS, PROCESS_DEFAULTS

if TYPE_CHECKING:
    from specworker.engine import Engine
    from tests.engines import Rack

for variable, value in (PROCESS_DEFAULTS | LOCAL_DEFAULTS).items():
    os.environ.setdefault(variable, value)

#: The configurations, in the order in which their engines run.
ENGINES = (
    "plain",
    "ngram",
    "ngram up to two",
    "self-draft",
    "cut draft",
    "medusa up to two",
    "suffix up to two",
    "tiny plain",
    "tiny ngram",
    "tiny draft",
    "of its own",  # the test starts one itself
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests without an engine first, then those of each engine together."""

    def place(item: pytest.Item) -> int:
        marker = item.get_closest_marker("engine")
        return 1 + ENGINES.index(marker.args[0]) if marker else 0

    items.sort(key=place)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    from specworker import demo_model

    return demo_model.prepare()


@pytest.fixture(scope="session")
def environments(
    demo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, dict[str, str]]:
    """The variables of each configuration."""
    from builder import heads, tiny
    from specworker import layer_cut
    from tests import hubs
    from tests.engines import NGRAM, UP_TO_TWO

    drafts = tmp_path_factory.mktemp("drafts")
    target = tiny.write(drafts / "tiny")
    other = tiny.write(drafts / "tiny-draft", layers=1, seed=1)
    cut = layer_cut.cut(demo_folder, range(0, 30, 5), drafts / "my-eagle-draft")
    medusa = heads.medusa(demo_folder, 3, drafts / "medusa")
    # As the platform may leave them on a volume: under lower-cased names.
    cache = drafts / "hub"
    hubs.place(cache, "acme/target-1b", demo_folder)
    hubs.place(cache, "acme/my-eagle-draft", cut)
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
    own = {
        "plain": {},
        "ngram": NGRAM,
        "ngram up to two": NGRAM | UP_TO_TWO,
        "self-draft": {"SPECULATIVE_MODEL": str(demo_folder), "NUM_SPECULATIVE_TOKENS": "3"},
        "cut draft": {
            "MODEL_NAME": "Acme/Target-1B",
            "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "",
            "SPECULATIVE_MODEL": "Acme/My-EAGLE-draft",
            "NUM_SPECULATIVE_TOKENS": "3",
            "HF_HUB_CACHE": str(cache),
            "HF_HUB_OFFLINE": "1",
        },
        "medusa up to two": {"SPECULATIVE_MODEL": str(medusa)} | UP_TO_TWO,
        "suffix up to two": {"SPECULATIVE_METHOD": "suffix"} | UP_TO_TWO,
        "tiny plain": {"MODEL_NAME": str(target)},
        "tiny ngram": {"MODEL_NAME": str(target)} | NGRAM | {"NGRAM_PROMPT_LOOKUP_MIN": "1"},
        "tiny draft": {"MODEL_NAME": str(target), "SPECULATIVE_MODEL": str(other)},
    }
    return {name: common | own[name] for name in own}


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
