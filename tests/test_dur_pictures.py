"""What a training history adds up to, and its pictures."""

from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread
from pictured_runs import HISTORY, batch

from ltrag_plugins.cli.io import training
from ltrag_plugins.dur import DURSettings
from ltrag_plugins.dur.batch import by_epoch, total
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.report.dur_figures import dur_pictures
from tests.dur_parts import moody_llm, trained
from tests.import_parts import python


def test_epochs_add_up_to_the_whole_and_their_reward_is_a_mean_over_questions():
    first, second = by_epoch(HISTORY)
    whole = total(HISTORY)
    assert (first.epoch, second.epoch) == (0, 1)
    assert second == replace(HISTORY[2], reward=second.reward)
    for name in ("questions", "shots", "calls", "tokens", "turned_hard"):
        assert getattr(first, name) + getattr(second, name) == getattr(whole, name)
    # 20 questions at -1 and 10 at 0.5, written out one by one
    assert first.reward == pytest.approx(np.mean([-1.0] * 20 + [0.5] * 10))


def test_what_one_batch_does_not_tell_the_total_does_not_guess():
    unknown = total([*HISTORY, batch(2, 0, tokens=None, turned_easy=None)])
    assert unknown.tokens is None
    assert unknown.turned_easy is None
    assert unknown.turned_hard == 24


def test_a_bar_shows_how_far_the_run_is_also_where_it_goes_on(capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    llm = moody_llm()
    with training(epochs=3, batches=2) as shown:
        trained(DURSettings(epochs=1, batch_size=6, held_out=0.0), llm, **shown)
    said = capsys.readouterr().err
    assert f"calls {len(llm.prompts)}" in said
    with training(epochs=3, batches=2) as shown:
        shown["on_batch"](batch(1, 1, reward=0.25, shots=67))
    said = capsys.readouterr().err
    assert "epoch 2/3" in said
    assert "4/6" in said


def test_each_picture_is_written_where_and_how_it_was_wanted(tmp_path):
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    before = matplotlib.rcParams["backend"], sorted(matplotlib.rcParams)
    paths = dur_pictures(HISTORY, tmp_path, shots=5, formats=starts)
    assert (matplotlib.rcParams["backend"], sorted(matplotlib.rcParams)) == before
    assert [path.name for path in paths] == [
        f"{name}.{suffix}" for name in ("shots", "loss", "turns") for suffix in starts
    ]
    for path in paths:
        assert path.read_bytes().startswith(starts[path.suffix[1:]])
    assert len({path.read_bytes() for path in paths}) == 9


def coloured(path, colour: str) -> np.ndarray:
    """Which pixels of a picture have this colour."""
    wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return np.abs(imread(path)[:, :, :3] - wanted).max(axis=2) < 0.01


def test_bars_are_as_high_as_their_shares(tmp_path):
    # 8 of 20 questions turn: 6 hard ones and 2 easy ones
    *_, path = dur_pictures([batch(0, 0)], tmp_path, shots=5)
    hard, easy = (coloured(path, colour).sum(axis=0) for colour in ("#d55e00", "#9fb3c8"))
    column = int(np.argmax(hard > 100)) + 10  # left in the bar, away from the legend
    assert hard[column] / easy[column] == pytest.approx(3, rel=0.05)


def test_fewer_shots_make_a_lower_bar(tmp_path):
    history = [batch(0, 0, shots=100), batch(1, 0, shots=50)]
    path, *_ = dur_pictures(history, tmp_path, shots=5)
    orange = coloured(path, "#d55e00")
    heights = orange[:, orange.shape[1] // 2 :].sum(axis=0)
    whole = heights.max()
    half = [h for h in heights if 0.4 * whole < h < 0.6 * whole]
    assert len(half) > 50  # the second bar's columns


def test_only_a_ladder_tells_whose_answers_turn(tmp_path):
    history = [batch(0, 0, easy=None, turned_easy=None, turned_hard=None)]
    drawn = dur_pictures(history, tmp_path / "deep" / "pictures", shots=5)
    assert [path.name for path in drawn] == ["shots.png", "loss.png"]
    assert all(path.exists() for path in drawn)


def test_an_empty_history_has_no_picture(tmp_path):
    with pytest.raises(InvalidInput, match="no batch was trained"):
        dur_pictures([], tmp_path / "none", shots=5)
    assert not (tmp_path / "none").exists()


def test_without_matplotlib_the_command_that_installs_it_is_named():
    told = python(
        """
        from ltrag_plugins.errors import MissingExtra
        try:
            import ltrag_plugins.report.dur_figures
        except MissingExtra as error:
            print(error)
        """,
        without=("matplotlib",),
    )
    assert told.endswith("pip install 'ltrag-plugins[plots]'")
