"""Has an image bring its models along: target and draft, and a manifest of both.

Usage: download_model.py FOLDER. The variables are the worker's own: MODEL_NAME,
MODEL_REVISION, SPECULATIVE_MODEL, SPECULATIVE_MODEL_REVISION. The token for a gated model
is a secret of the build, never a variable of the image.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from specworker import baked, download, hub_cache, speculation
from specworker.errors import ConfigurationError
from specworker.hub_cache import Found
from specworker.settings import Settings
from specworker.values import text_of

#: Where a build mounts the secret.
SECRET = Path("/run/secrets/HF_TOKEN")


def wanted(environment: MutableMapping[str, str]) -> Iterator[tuple[str, Found]]:
    """The models that the variables name, and the variable that names each.

    Raises:
        ConfigurationError: a variable is wrong, or names what is not on the hub.
    """
    settings = Settings.from_env(environment)
    named = []
    if settings.model_name:
        named.append((baked.TARGET, settings.model_name, hub_cache.target_revision(environment)))
    if draft := speculation.draft(settings):
        named.append((baked.DRAFT, draft.name, draft.revision))
    for variable, name, revision in named:
        if not hub_cache.is_hub_id(name):
            raise ConfigurationError(
                [f"{variable}={name}: cannot be downloaded; allowed: a hub id, such as org/model"]
            )
        yield variable, Found(name, name, revision)


def main(environment: MutableMapping[str, str], folder: Path) -> int:
    """Download to `folder`, and write the manifest. Returns the exit status."""
    if SECRET.is_file() and not text_of(environment, "HF_TOKEN"):
        environment["HF_TOKEN"] = SECRET.read_text().strip()
    models: dict[str, baked.Baked] = {}
    try:
        with tempfile.TemporaryDirectory() as home:
            # Read when the hub's client is imported, which `fetch` does.
            environment.update({"HF_HOME": home, "HF_HUB_CACHE": str(folder)})
            for variable, model in wanted(environment):
                sys.stderr.write(f"{variable}={model.name}\n")
                found = download.fetch(variable, model, text_of(environment, "HF_TOKEN"))
                commit = Path(found.place).name
                models[variable] = baked.Baked(model.name, model.revision, commit)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not models:
        sys.stderr.write("MODEL_NAME and SPECULATIVE_MODEL are not set: the image has no model\n")
        return 0
    baked.write(folder, models)
    sys.stderr.write((folder / baked.MANIFEST).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ, Path(sys.argv[1])))
