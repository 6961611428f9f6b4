"""What is planned, as a person reads it."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specworker import model_size
from specworker.gpu_memory import GIB
from specworker.planning import Model, Planned

SOURCES = {"headers": "headers", "files": "size of its files", "config": "config, estimated"}


def of(planned: Planned) -> RenderableType:
    """The models, what they share, and the types of GPUs."""
    each = "each of " if planned.gpus > 1 else ""
    told = (
        f"{planned.speculation}\n"
        f"Sequences of {planned.context} tokens; {planned.gpu_memory_utilization:.0%} of "
        f"{each}{planned.gpus} GPU{'s' * (planned.gpus > 1)}. Room to compute in is an estimate."
    )
    return Group(_models(planned), Text(told), _gpus(planned))


def _models(planned: Planned) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("model", overflow="fold")
    for name in ("parameters", "weights, GiB", "KV, bytes/token"):
        table.add_column(name, justify="right")
    table.add_column("by")
    _add(table, "target", planned.target)
    if planned.draft:
        _add(table, "draft", planned.draft)
    return table


def _add(table: Table, role: str, model: Model) -> None:
    count = model_size.shown(model.parameters) if model.parameters else "unknown"
    weights, kept = f"{model.weight_bytes / GIB:.2f}", f"{model.kv_bytes_per_token}"
    table.add_row(role, Text(model.name), count, weights, kept, SOURCES[model.source])


def _gpus(planned: Planned) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("GPU" if planned.gpus == 1 else f"{planned.gpus} GPUs, figures of each")
    table.add_column("fits")
    names = ["to compute, GiB", "KV cache, GiB", "sequences"]
    for name in [*names, "draft costs"] if planned.draft else names:
        table.add_column(name, justify="right")
    for row in planned.rows:
        cells = [
            row.gpu,
            "yes" if row.fits else "no",
            f"{row.room_bytes / GIB:.1f}",
            f"{row.kv_cache_bytes / GIB:.1f}",
            f"{row.sequences}",
        ]
        table.add_row(*cells, *[f"{row.draft_costs_sequences}"] * bool(planned.draft))
    return table
