"""`ltrag sgic finetune`: teach a model the examples that `ltrag sgic build` wrote."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ltrag_plugins.cli import options as opt
from ltrag_plugins.cli.finetuning_bar import FinetuneBar
from ltrag_plugins.cli.models import load_llm, reaches_server
from ltrag_plugins.cli.output import checked_folder, say, show, show_json, working
from ltrag_plugins.errors import InvalidInput

if TYPE_CHECKING:  # torch behind them would slow --help down
    from ltrag_plugins.llm.transformers import TransformersLLM
    from ltrag_plugins.training import FinetuneResult, FinetuneSettings

# the choices of FinetuneSettings, written again for the same reason
Method = Literal["lora", "full"]
Dtype = Literal["auto", "float32", "bfloat16"]
NAMED = 3
"""Most left-out examples that a summary names."""


def finetune(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="The folder that 'ltrag sgic build' wrote, or a file of chat JSON lines: "
            '{"messages": [{"role": "user", ...}, {"role": "assistant", ...}]}.',
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="ADAPTER/",
            help="New or empty folder for the adapter; a run that was stopped goes on in it.",
        ),
    ],
    model: opt.Model = "embedded",
    method: Annotated[
        Method,
        typer.Option(help="lora: a small adapter beside the weights. full: all weights, anew."),
    ] = "lora",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the examples.")] = 3,
    learning_rate: Annotated[
        float, typer.Option(help="At its highest; a small model learns more at 2e-4.")
    ] = 5e-5,
    batch: Annotated[int, typer.Option(min=1, help="Examples in a step.")] = 16,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Examples computed at once; divides --batch.",
            show_default="1 on the CPU, else what 16,384 tokens hold",
        ),
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Of the adapter's matrices.")] = 8,
    alpha: Annotated[
        float | None,
        typer.Option(help="The adapter counts alpha / rank times.", show_default="twice the rank"),
    ] = None,
    dropout: Annotated[
        float, typer.Option(help="Share of the adapter's inputs left out, from 0 to below 1.")
    ] = 0.0,
    layers: Annotated[
        int | None,
        typer.Option(min=1, help="Adapt only the last so many; faster.", show_default="all"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Leave out longer examples, prompt and answer counted.",
            show_default="what the model reads",
        ),
    ] = None,
    held_out: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of the questions for validation.")
    ] = 0.05,
    steps: Annotated[int | None, typer.Option(min=1, help="Most steps.")] = None,
    dtype: Annotated[
        Dtype, typer.Option(help="Of the frozen weights; auto: float32 on the CPU.")
    ] = "auto",
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, a third slower.")
    ] = False,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 20,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the adapter, the order and what is held out.")
    ] = 0,
    as_data: opt.Json = False,
) -> None:
    """Fine-tune a model of local weights on answers that were mended or kept.

    What was stopped goes on with the same command. Needs the extra [bold]train[/].

    [dim]ltrag sgic finetune data/ --model hf:ORG/NAME --out adapter/[/]
    [dim]ltrag sgic answer questions.jsonl --model hf:ORG/NAME --adapter adapter/[/]
    """
    from ltrag_plugins.training.settings import FinetuneSettings

    result = _finetuned(
        data,
        out,
        model,
        FinetuneSettings(
            method=method,
            epochs=epochs,
            learning_rate=learning_rate,
            batch=batch,
            micro_batch=micro_batch,
            rank=rank,
            alpha=alpha,
            dropout=dropout,
            layers=layers,
            max_tokens=max_tokens,
            held_out=held_out,
            steps=steps,
            dtype=dtype,
            gradient_checkpointing=gradient_checkpointing,
            save_every=save_every,
            seed=seed,
        ),
    )
    use = f"--model {model} --adapter {out}" if method == "lora" else f"--model {out}"
    say(f"the {'adapter' if method == 'lora' else 'model'} is in {out}; use it with {use}")
    if as_data:
        show_json(record(result), indent=1)
    else:
        show(summary(result))


def record(result: "FinetuneResult") -> dict[str, Any]:
    """The outcome as JSON."""
    last = result.history[-1]
    return {
        "out": str(result.folder),
        "examples": result.examples,
        "held_out": result.held_out,
        "left_out": [{"id": one.id, "tokens": one.tokens} for one in result.dropped],
        "steps": last.step,
        "loss": [result.history[0].loss, last.loss],
        "validation": [{"step": step, "loss": loss} for step, loss in result.validation],
        "tokens": sum(step.tokens for step in result.history),
        "seconds": round(sum(step.seconds for step in result.history), 1),
    }


def summary(result: "FinetuneResult") -> str:
    """The outcome in a few lines."""
    told = record(result)
    first, last = told["loss"]
    speed = told["tokens"] / max(told["seconds"], 0.1)
    lines = [
        f"{told['steps']} steps over {told['examples']} examples, "
        f"{told['tokens']:,} tokens at {speed:,.0f} a second",
        f"loss a token: {first:.3f} in the first step, {last:.3f} in the last",
    ]
    if told["validation"]:
        losses = " -> ".join(f"{one['loss']:.3f}" for one in told["validation"])
        lines.append(f"of the {told['held_out']} held out, before and after each epoch: {losses}")
    if left := told["left_out"]:
        names = ", ".join(f"{one['id']} ({one['tokens']:,} tokens)" for one in left[:NAMED])
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        lines.append(f"left out as too long: {names}{more}")
    return "\n".join(lines)


def _finetuned(data: Path, out: Path, model: str, settings: "FinetuneSettings") -> "FinetuneResult":
    from ltrag_plugins.training.examples import load

    checked_folder(out)
    dataset = load(data)
    with working("loading TRL and PEFT"):
        from ltrag_plugins.training import finetune as train
    llm = _local(model)
    try:
        with FinetuneBar() as bar:
            return train(dataset, llm, out=out, settings=settings, on_step=bar)
    except KeyboardInterrupt:
        say(f"the steps up to the last checkpoint are in {out}; the same command goes on")
        raise


def _local(spec: str) -> "TransformersLLM":
    from ltrag_plugins.llm.transformers import TransformersLLM

    if reaches_server(spec):
        raise InvalidInput(
            f"{spec} is a server, whose weights cannot be trained here; name embedded, a folder, "
            "a .gguf file or hf:ORG/NAME"
        )
    llm = load_llm(spec)
    assert isinstance(llm, TransformersLLM)  # whatever is behind no address
    return llm
