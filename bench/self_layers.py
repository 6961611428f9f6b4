"""What a draft made of some of a model's own layers would be accepted for.

Along the model's own greedy text, how often the most likely next token of a subset of
its layers is the model's own: the acceptance of one drafted token at temperature 0, and
what it gains (arXiv 2211.17192) where a draft step costs the share of the layers. Ways
to choose the subset, at equal depth:

  first    the first layers
  even     evenly spread, the first and the last among them
  ends     as the worker chooses: without a block around the middle
  early    without a block that starts a fourth in
  late     without a block that ends a fourth before the end
  search   without the layer that is missed least, one after the other; found on a fourth
           of the texts and shown on the others

Usage: python bench/self_layers.py [FOLDER] [--tokens N] [--depths 10,15,20,24] [--search]
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))

from specworker import demo_model, self_layers

PROMPTS = {
    "chat": (
        "What is the capital of France, and what is it known for?",
        "Explain in simple terms why the sky is blue.",
        "Give me three tips for sleeping better.",
        "Write a short poem about the sea.",
        "What is the difference between a list and a tuple in Python?",
        "Write a polite e-mail that asks a colleague for a meeting on Tuesday.",
        "A train travels 60 km in 45 minutes. What is its average speed in km/h?",
        "Translate 'good morning, how are you?' into French and Spanish.",
    ),
    "code": (
        'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
        "import json\n\n\ndef read_config(path):\n",
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self,",
        "SELECT name, COUNT(*) FROM orders\n",
        "for (let i = 0; i < items.length; i++) {\n",
        "#include <stdio.h>\n\nint main(void) {\n",
    ),
    "copying": (
        "The cat sat on the mat. The dog sat on the log. The cat sat on the mat. The dog",
        "1. apple\n2. banana\n3. cherry\n1. apple\n2. banana\n3.",
        "name,age\nAnna,31\nBen,28\nCarla,45\n\nThe same table again:\nname,age\n",
        "A quick brown fox jumps over a lazy dog.\nThe same again:\nA quick brown",
    ),
    "prose": (
        "Once upon a time, in a village by the sea, there lived",
        "The history of the Roman Empire begins",
        "Photosynthesis is the process by which",
        "In the morning the streets were still wet, and",
        "The first prime numbers are 2, 3, 5, 7, 11,",
        "Scientists at the university announced on Monday that",
    ),
}
#: Tokens drafted a step that are tried.
TOKENS_PER_STEP = range(1, 9)


class Text(NamedTuple):
    """A prompt and the model's own continuation, and where that starts."""

    kind: str
    ids: torch.Tensor
    start: int


class Model:
    """A causal model whose layers can be left out."""

    def __init__(self, folder: Path) -> None:
        """Load the model in `folder`, in float32."""
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.eval()
        self._layers = list(self._model.model.layers)
        self._kinds = getattr(self._model.config, "layer_types", None)
        self.depth = len(self._layers)

    def texts(self, tokens: int) -> Iterator[Text]:
        """Every prompt with `tokens` more by the whole model."""
        self._keep(range(self.depth))
        for kind, prompts in PROMPTS.items():
            for prompt in prompts:
                ids = self._encoded(prompt, is_chat=kind == "chat")
                with torch.inference_mode():
                    written = self._model.generate(
                        ids,
                        attention_mask=torch.ones_like(ids),
                        max_new_tokens=tokens,
                        min_new_tokens=tokens,
                        do_sample=False,
                        pad_token_id=0,
                    )
                yield Text(kind, written[0], ids.shape[1])

    def choices(self, texts: Sequence[Text], layers: Sequence[int]) -> list[torch.Tensor]:
        """The most likely token of `layers` at each place of each continuation."""
        self._keep(layers)
        longest = max(len(text.ids) for text in texts)
        batch = torch.zeros(len(texts), longest, dtype=torch.long)
        for row, text in zip(batch, texts, strict=True):
            row[: len(text.ids)] = text.ids  # what is padded behind is not seen before
        with torch.inference_mode():
            hidden = self._model.model(batch, use_cache=False).last_hidden_state
            return [
                self._model.lm_head(row[text.start - 1 : len(text.ids) - 1]).argmax(-1)
                for row, text in zip(hidden, texts, strict=True)
            ]

    def _encoded(self, prompt: str, *, is_chat: bool) -> torch.Tensor:
        if not is_chat or self._tokenizer.chat_template is None:
            return torch.tensor([self._tokenizer(prompt).input_ids])
        message = [{"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(
            message, tokenize=False, add_generation_prompt=True
        )
        return torch.tensor([self._tokenizer(text, add_special_tokens=False).input_ids])

    def _keep(self, layers: Sequence[int]) -> None:
        self._model.model.layers = torch.nn.ModuleList(self._layers[layer] for layer in layers)
        self._model.config.num_hidden_layers = len(layers)
        if self._kinds:
            self._model.config.layer_types = [self._kinds[layer] for layer in layers]


def agreement(
    texts: Sequence[Text], whole: Sequence[torch.Tensor], drafted: Sequence[torch.Tensor]
) -> dict[str, float]:
    """By kind of text and over all, how often the drafted token is the model's own."""
    same: dict[str, list[torch.Tensor]] = {}
    for text, own, draft in zip(texts, whole, drafted, strict=True):
        for kind in (text.kind, "all"):
            same.setdefault(kind, []).append((own == draft).float())
    return {kind: float(torch.cat(parts).mean()) for kind, parts in same.items()}


def without(start: int, kept: int, depth: int) -> list[int]:
    """`kept` of `depth` layers, without a block that starts at `start`."""
    return [*range(start), *range(start + depth - kept, depth)]


def subsets(kept: int, depth: int) -> dict[str, list[int]]:
    even = {round(place * (depth - 1) / (kept - 1)) for place in range(kept)}
    return {
        "first": list(range(kept)),
        "even": sorted(even),
        "ends": list(self_layers.around_the_middle(kept, depth)),
        "early": without(min(kept, depth // 4), kept, depth),
        "late": without(max(0, kept - depth // 4), kept, depth),
    }


def searched(
    model: Model, texts: Sequence[Text], whole: Sequence[torch.Tensor], fewest: int
) -> dict[int, list[int]]:
    """The layers that are kept, by their number, as those missed least are left out."""
    layers = list(range(model.depth))
    found = {}
    while len(layers) > fewest:
        rates = {}
        for layer in layers:
            rest = [other for other in layers if other != layer]
            rates[layer] = agreement(texts, whole, model.choices(texts, rest))["all"]
        layers.remove(max(rates, key=lambda layer: rates[layer]))
        found[len(layers)] = list(layers)
    return found


def gain(rate: float, cost: float, tokens: int) -> float:
    """Speed over plain decoding where each of `tokens` drafted is accepted at `rate`."""
    made = sum(rate**place for place in range(tokens + 1))
    return made / (tokens * cost + 1)


def measure(options: argparse.Namespace, messages: Console) -> Table:
    model = Model(options.folder or demo_model.prepare())
    messages.print("Writing the texts …")
    texts = list(model.texts(options.tokens))
    whole = model.choices(texts, range(model.depth))
    found: dict[int, list[int]] = {}
    if options.search:
        messages.print("Searching …")
        found = searched(model, texts[::4], whole[::4], min(options.depths))
    table = Table(title=f"agreement with all {model.depth} layers, and gain at the best K")
    for column in ("layers", "choice", *PROMPTS, "all", "K", "gain"):
        table.add_column(column, justify="left" if column == "choice" else "right")
    for kept in options.depths:
        ways = subsets(kept, model.depth) | ({"search": found[kept]} if kept in found else {})
        for way, layers in ways.items():
            of = [place for place in range(len(texts)) if way != "search" or place % 4]
            asked = [texts[place] for place in of]
            rates = agreement(asked, [whole[place] for place in of], model.choices(asked, layers))
            cost = kept / model.depth
            tokens = max(TOKENS_PER_STEP, key=lambda k: gain(rates["all"], cost, k))
            shown = [f"{rates.get(kind, 0):.2f}" for kind in PROMPTS]
            best = f"{gain(rates['all'], cost, tokens):.2f}"
            choice = f"{way} ({self_layers.shown(layers)})"
            table.add_row(f"{kept}", choice, *shown, f"{rates['all']:.3f}", f"{tokens}", best)
    return table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, nargs="?", help="the model; the demo when not given")
    parser.add_argument("--tokens", type=int, default=60, help="tokens of each text")
    parser.add_argument(
        "--depths",
        type=lambda text: [int(n) for n in text.split(",")],
        default=[10, 15, 20, 24, 27],
    )
    parser.add_argument("--search", action="store_true", help="search too; takes many minutes")
    return parser.parse_args()


if __name__ == "__main__":
    Console().print(measure(parse(), Console(stderr=True)))
