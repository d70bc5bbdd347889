"""Fine-tuning, held against scores, plain PEFT, and a run that was never interrupted."""

import json
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from ltrag_plugins.errors import (
    ArtifactMismatch,
    InvalidInput,
    ModelError,
    UnreadableArtifact,
    UnwritableArtifact,
)
from ltrag_plugins.llm.loading import fingerprint
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.training import Dataset, Example, FinetuneSettings, finetune
from ltrag_plugins.training.tuning import _rows_of as rows_of
from ltrag_plugins.types import GenerationSettings
from tests.finetune_parts import EXAMPLES, LONGER, TAUGHT, tiny_llm

ONE_STEP = FinetuneSettings(steps=1, held_out=0, batch=4)


@pytest.fixture
def llm(smollm2):
    return tiny_llm(smollm2.tokenizer)


@pytest.fixture(scope="module")
def whole(smollm2, tmp_path_factory):
    """A run that nothing interrupts: its folder and its result."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return out, finetune(EXAMPLES, tiny_llm(smollm2.tokenizer), out=out, settings=LONGER)


@pytest.fixture(scope="module")
def one_step(smollm2, tmp_path_factory):
    """The folder of the shortest run."""
    out = tmp_path_factory.mktemp("one_step") / "out"
    finetune(EXAMPLES, tiny_llm(smollm2.tokenizer), out=out, settings=ONE_STEP)
    return out


@pytest.fixture
def tune(llm, tmp_path):
    """Train in a folder of this test, by its name; without another model the tiny one."""

    def tune(name="out", settings=ONE_STEP, *, model=None, data=EXAMPLES, **more):
        changes = {key: more.pop(key) for key in [*more] if key != "on_step"}
        how = replace(settings, **changes)
        return finetune(data, model or llm, out=tmp_path / name, settings=how, **more)

    return tune


def split(llm, dataset=EXAMPLES, held_out=0.0):
    """What is learned, and what is held out."""
    return rows_of(dataset, llm, FinetuneSettings(held_out=held_out))[:2]


def weights(folder: Path) -> bytes:
    return (folder / "adapter_model.safetensors").read_bytes()


def test_a_prompt_has_the_tokens_that_it_has_at_inference(smollm2):
    for row, example in zip(split(smollm2)[0], EXAMPLES.examples, strict=True):
        prompt = smollm2.prompting.ids(example.prompt)
        assert row["input_ids"][: len(prompt)] == prompt
        assert row["labels"] == [-100] * len(prompt) + row["input_ids"][len(prompt) :]
        whole = smollm2.tokenizer.decode(row["input_ids"])
        assert whole.endswith(f"assistant\n{example.target}<|im_end|>")


def test_without_a_chat_template_the_answer_goes_on_in_the_prompts_line(smollm2):
    plain = TransformersLLM(smollm2.model, smollm2.tokenizer, chat=False)
    dataset = Dataset((Example("Q: who?\nA:", "Emma"), Example("Q: who?\nA:\n", "Emma")))
    one, two = split(plain, dataset)[0]
    assert plain.tokenizer.decode(one["input_ids"]) == "Q: who?\nA: Emma<|im_end|>"
    assert plain.tokenizer.decode(two["input_ids"]) == "Q: who?\nA:\nEmma<|im_end|>"


def test_the_first_loss_is_the_mean_of_the_scored_tokens(llm, tune):
    result = tune()
    scored = llm.score(list(TAUGHT), [f"{target}<|im_end|>" for target in TAUGHT.values()])
    told = [token.logprob for one in scored for token in one.tokens]
    assert result.history[0].loss == pytest.approx(-np.mean(told), rel=1e-5)
    assert result.history[0].tokens == sum(len(row["input_ids"]) for row in split(llm)[0])
    for micro in (2, 4):  # padding and micro batches change no loss
        some = tune(f"{micro}", micro_batch=micro)
        assert some.history[0].loss == pytest.approx(result.history[0].loss, rel=1e-5)


def test_the_words_that_could_follow_are_weighed_at_the_tokens_of_the_answers_alone(llm, tune):
    shapes, words = [], llm.model.config.vocab_size

    def note(part, given, said):
        if isinstance(said, torch.Tensor) and said.shape[-1] == words:
            shapes.append(said.shape[:-1])

    answers = [sum(label != -100 for label in row["labels"]) for row in split(llm)[0]]
    with torch.nn.modules.module.register_module_forward_hook(note):
        tune()
    assert sorted(shapes) == sorted((1, n) for n in answers)


@pytest.mark.parametrize(("method", "rate", "width"), [("lora", 1e-2, 64), ("full", 2e-2, 32)])
def test_a_model_that_learned_four_answers_by_heart_gives_them_and_stops(
    smollm2, tmp_path, method, rate, width
):
    llm = tiny_llm(smollm2.tokenizer, width=width)
    settings = FinetuneSettings(
        method=method, epochs=45, batch=4, learning_rate=rate, held_out=0, rank=16, alpha=32,
        save_every=1000,
    )  # fmt: skip
    out = tmp_path / "out"
    result = finetune(EXAMPLES, llm, out=out, settings=settings)
    assert result.history[-1].loss < 0.1
    base = tmp_path / "base"
    for part in (llm.model, llm.tokenizer):
        part.save_pretrained(base)
    told = {"adapter": out} if method == "lora" else {}
    tuned = TransformersLLM.load(base if told else out, **told)
    written = tuned.generate(list(TAUGHT), GenerationSettings(max_tokens=12))
    assert [one.text for one in written] == list(TAUGHT.values())
    assert all(one.completion_tokens < 12 for one in written)


def test_the_model_handed_in_and_the_callers_randomness_are_left_alone(llm, tune):
    def state():
        draws = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        return fingerprint(llm.model), llm.name, llm.model.name_or_path, draws

    before = state()
    tune(settings=LONGER, steps=2)
    assert state() == before
    assert not llm.model.training
    assert all(weight.requires_grad for weight in llm.model.parameters())
    parts = {type(part).__module__.partition(".")[0] for part in llm.model.modules()}
    assert parts <= {"torch", "transformers"}


def test_equal_arguments_give_equal_weights_and_another_seed_gives_others(tune, tmp_path):
    ways = {"a": {}, "b": {}, "c": {"seed": 1}, "d": {"gradient_checkpointing": True}}
    for name, how in ways.items():
        tune(name, warmup=0, **how)
    a, b, other, checkpointed = (weights(tmp_path / name) for name in ways)
    assert a == b == checkpointed != other


KILLED = """
import os, signal, sys, torch
from ltrag_plugins.llm.embedded import embedded
from ltrag_plugins.training import finetune
from tests.finetune_parts import EXAMPLES, LONGER, tiny_llm

out, at, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)

def stop(step):
    if step.step == at:
        os.kill(os.getpid(), signal.SIGKILL)

llm = tiny_llm(embedded(device="cpu").tokenizer)
finetune(EXAMPLES, llm, out=out, settings=LONGER, on_step=stop)
"""


def test_a_killed_run_ends_as_one_that_was_not(llm, whole, tmp_path):
    folder, result = whole
    at = random.Random(0).randint(2, len(result.history) - 1)
    given = (tmp_path / "killed", str(at), str(torch.get_num_threads()))
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", KILLED, *given], cwd=root, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    steps = []
    killed = finetune(EXAMPLES, llm, out=tmp_path / "killed", settings=LONGER, on_step=steps.append)
    assert steps[0].step == at, f"killed at {at}"
    assert weights(tmp_path / "killed") == weights(folder), f"killed at {at}"
    assert [step.loss for step in killed.history] == [step.loss for step in result.history]
    assert killed.validation == result.validation


class Stop(Exception):
    """Not ours: an interruption."""


@pytest.fixture
def interrupted(tune):
    def interrupted(at, **changes):
        def stop(step):
            if step.step == at:
                raise Stop

        with pytest.raises(Stop):
            tune("cut", LONGER, on_step=stop, **changes)

    return interrupted


def test_a_half_written_checkpoint_is_passed_over(interrupted, tune, whole, tmp_path):
    interrupted(4)
    last = tmp_path / "cut" / "checkpoints" / "checkpoint-3"
    with (last / "optimizer.pt").open("r+b") as file:
        file.truncate(100)
    steps = []
    tune("cut", LONGER, on_step=steps.append)
    assert steps[0].step == 3
    assert weights(tmp_path / "cut") == weights(whole[0])


def test_full_tuning_goes_on_as_well(interrupted, tune, tmp_path):
    full = {"method": "full", "dropout": 0}
    tune("whole", LONGER, **full)
    interrupted(4, **full)
    tune("cut", LONGER, **full)
    one, other = (tmp_path / name / "model.safetensors" for name in ("whole", "cut"))
    assert one.read_bytes() == other.read_bytes()


def test_a_result_that_could_not_be_written_is_written_the_next_time(
    interrupted, tune, whole, tmp_path
):
    interrupted(6)
    in_the_way = tmp_path / "cut" / "adapter_model.safetensors"
    in_the_way.mkdir()
    with pytest.raises(UnwritableArtifact, match="cannot write to"):
        tune("cut", LONGER)
    assert not [*in_the_way.parent.glob("*.new")]
    in_the_way.rmdir()
    steps = []
    result = tune("cut", LONGER, on_step=steps.append)
    assert steps == []
    assert weights(tmp_path / "cut") == weights(whole[0])
    assert [step.loss for step in result.history] == [step.loss for step in whole[1].history]


def test_a_finished_run_is_handed_back_and_not_trained_again(tune, tmp_path):
    steps = []
    half = tmp_path / "out" / "run.json.1f.new"  # as a kill leaves it
    half.parent.mkdir()
    half.write_bytes(b"half of")
    first = tune(settings=LONGER, on_step=steps.append)
    half.unlink()
    assert tuple(steps) == first.history
    assert len(steps) == first.history[-1].steps == 6
    assert tune(settings=LONGER, on_step=steps.append) == first
    assert len(steps) == 6
    assert [step for step, _ in first.validation] == [0, 2, 4, 6]
    # neither a checkpoint nor a pickle is left behind
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == [
        "adapter_config.json", "adapter_model.safetensors", "finetune.json", "history.json",
        "run.json",
    ]  # fmt: skip


def test_the_validation_loss_is_that_of_the_held_out_questions(llm, whole):
    _, result = whole
    learned, held_out = split(llm, held_out=0.25)
    assert (result.examples, result.held_out) == (len(learned), len(held_out)) == (3, 1)
    [question] = (one for one in EXAMPLES.examples if one.id == held_out[0]["id"])
    [scored] = llm.score([question.prompt], [f"{question.target}<|im_end|>"])
    expected = -np.mean([token.logprob for token in scored.tokens])
    assert result.validation[0] == (0, pytest.approx(expected, rel=1e-5))


def test_the_rounds_of_a_question_are_held_out_together(llm):
    examples = tuple(Example(f"{r}?", "yes", f"q{i}") for i in range(10) for r in range(3))
    learned, held_out = split(llm, Dataset(examples), 0.3)
    assert len(held_out) == 9
    assert not {row["id"] for row in learned} & {row["id"] for row in held_out}
    unnamed = Dataset(tuple(Example(f"{i}?", "yes") for i in range(10)))
    assert len(split(llm, unnamed, 0.3)[1]) == 3


def test_only_the_last_layers_get_an_adapter_where_that_is_asked_for(tune, tmp_path):
    tune(layers=1)
    told = json.loads((tmp_path / "out" / "finetune.json").read_text())
    assert told["settings"]["layers"] == 1
    with safe_open(tmp_path / "out" / "adapter_model.safetensors", framework="pt") as file:
        names = list(file.keys())
    assert len(names) == 2 * 7
    assert all(".layers.1." in name for name in names)


def test_what_is_too_long_is_left_out_and_named(tune):
    long = Example("word " * 300, "yes", "long one")
    result = tune("a", data=Dataset((*EXAMPLES.examples, long)), max_tokens=200)
    [(name, tokens)] = result.dropped
    assert (name, tokens > 300, result.examples) == ("long one", True, 4)
    with pytest.raises(InvalidInput, match="all 1 examples are longer than 200 tokens"):
        tune("b", data=Dataset((long,)), max_tokens=200)


def test_nothing_to_learn_from_is_refused_before_anything_is_written(tune, tmp_path):
    for examples, why in ((), "no examples"), ((Example("Who?", " ", "q"),), "of 'q' is empty"):
        with pytest.raises(InvalidInput, match=why):
            tune(data=Dataset(examples))
    assert not (tmp_path / "out").exists()


def test_a_folder_with_another_run_is_refused_by_naming_the_difference(llm, smollm2, one_step):
    before, seeded = weights(one_step), tiny_llm(smollm2.tokenizer, seed=1)
    for examples, model, settings, why in (
        (EXAMPLES, llm, replace(ONE_STEP, learning_rate=1e-3), r"was 5e-05 and is now 0\.001"),
        (Dataset(EXAMPLES.examples[:3]), llm, ONE_STEP, "dataset differs"),
        (EXAMPLES, seeded, ONE_STEP, "base"),
    ):
        with pytest.raises(ArtifactMismatch, match=why):
            finetune(examples, model, out=one_step, settings=settings)
    assert weights(one_step) == before


def test_a_folder_with_other_files_or_none_to_write_to_is_refused(tune, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(InvalidInput, match=r"holds other files \(model.safetensors\)"):
        tune("")
    with pytest.raises(UnwritableArtifact, match="cannot write to"):
        tune("model.safetensors/out")


@pytest.mark.parametrize(
    "name", ["run.json", "finetune.json", "history.json", "adapter_model.safetensors"]
)
def test_a_damaged_run_is_named(tune, one_step, tmp_path, name):
    shutil.copytree(one_step, tmp_path / "out")
    (tmp_path / "out" / name).write_bytes(b"{")
    with pytest.raises(UnreadableArtifact, match=name):
        tune()


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_what_was_saved(smollm2, tune, tmp_path):
    broken = tiny_llm(smollm2.tokenizer)
    with torch.no_grad():
        broken.model.lm_head.weight[0] = float("nan")
    with pytest.raises(ModelError, match="the loss of step 1 is nan"):
        tune(model=broken)
    wild = {"learning_rate": 1e30, "clip": 1e30, "schedule": "constant", "warmup": 0}
    with pytest.raises(ModelError, match=r"of step [2-6] is"):
        tune("b", LONGER, **wild)
    assert not (tmp_path / "b" / "finetune.json").exists()


def test_a_validation_loss_that_is_no_number_is_named(smollm2, tune, tmp_path):
    spoiled = tiny_llm(smollm2.tokenizer)

    def spoil(_):  # after the step, before the held-out answers are read
        with torch.no_grad():
            spoiled.model.lm_head.weight[0] = float("nan")

    with pytest.raises(ModelError, match="the validation loss after step 1 is nan"):
        tune(model=spoiled, on_step=spoil, held_out=0.5)
    assert not (tmp_path / "out" / "history.json").exists()


def test_neither_the_trainers_makers_nor_a_hub_hear_of_a_run(llm, tune, monkeypatch):
    heard, checking = [], "peft.utils.save_and_load.check_file_exists_on_hf_hub"
    for place in ("trl.trainer.base_trainer.send_telemetry", checking):
        monkeypatch.setattr(place, lambda *words, **_: heard.append(words))
    llm.model.name_or_path = llm.model.config._name_or_path = "org/name"
    tune(settings=LONGER)
    assert (heard, llm.model.name_or_path) == ([], "org/name")


@pytest.mark.parametrize(("changes", "told"), [
    ({"epochs": 0}, "epochs must be .* at least 1, got 0"),
    ({"learning_rate": 0}, "learning_rate"),
    ({"learning_rate": float("nan")}, "learning_rate"),
    ({"dropout": 1}, "dropout"),
    ({"held_out": -0.1}, "held_out"),
    ({"warmup": 1.0}, "warmup"),
    ({"method": "qlora"}, "method"),
    ({"schedule": "steps"}, "schedule"),
    ({"dtype": "float16"}, "dtype"),
    ({"batch": 16, "micro_batch": 3}, "must divide"),
    ({"method": "full", "layers": 2}, "layers is for method='lora'"),
    ({"method": "full", "dtype": "bfloat16"}, "loses small steps"),
])  # fmt: skip
def test_a_setting_out_of_range_is_named(changes, told):
    with pytest.raises(InvalidInput, match=told):
        FinetuneSettings(**changes)
