"""The recipe listen-attend-walk, from instructions to actions that are carried out."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import saccade
from saccade.config.load import load
from saccade.config.plugins import Kinds
from saccade.config.schema import Corpus
from saccade.data.batching.batch import Batch
from saccade.data.batching.batches import collate_batch
from saccade.data.prepare import prepare
from saccade.demo.listing import get_demonstration
from saccade.errors import SaccadeError
from saccade.predict.search.ensemble import Ensemble
from saccade.score.api import read_test_pairs
from saccade.score.compare import compare
from saccade.score.evaluate import evaluate_corpora
from saccade_worlds.navigation.predictor import WalkCodec, Walker
from saccade_worlds.navigation.scores import read_route_pairs
from saccade_worlds.navigation.writer import ActionWriter

FEW = [
    "train.steps=4", "train.schedule.warmup_steps=1", "train.valid_every=2", "train.save_every=2",
    "train.valid_predictions=5", "train.batch_tokens=512", "data.train.0.examples=40", "data.valid.0.examples=10",
    "reader.stack.dim=12", "writer.stack.dim=16",
]  # fmt: skip
HELDOUT = Corpus(files=("embedded:worlds-heldout",), examples=12)


@pytest.fixture(scope="module")
def walker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    return saccade.train("listen-attend-walk", tiny=True, run=folder / "x", overrides=FEW), folder / "x"


def lines():
    return [source for source, _ in read_route_pairs([HELDOUT])]


def test_a_run_that_was_resumed_is_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = [*FEW, "train.schedule.kind=constant", "writer.input_dropout=0.1", "reader.dropout=0.1"]
    saccade.train("listen-attend-walk", tiny=True, run="whole", overrides=changes)
    saccade.train("listen-attend-walk", tiny=True, run="half", overrides=[*changes, "train.steps=2"])
    saccade.train(resume="half", overrides=["train.steps=4"])
    whole, half = (Path("runs", name, "model.safetensors").read_bytes() for name in ("whole", "half"))
    assert whole == half
    last = json.loads(Path("runs/half/metrics.jsonl").read_text().splitlines()[-1])
    assert {"success", "place", "accuracy"} <= set(last)


def test_what_was_trained_walks_the_same_after_loading(walker):
    trained, run = walker
    loaded = saccade.load(run)
    assert isinstance(loaded.codec, WalkCodec)
    assert loaded.predict(lines()) == trained.predict(lines())
    [[best, *_]] = loaded.candidates(lines()[:1])
    described = loaded.describe(lines()[0], [best])
    start = json.loads(lines()[0])["start"]
    assert list(described["route"][0]) == start and described["end"] == described["route"][-1]


@torch.no_grad()
def test_step_by_step_is_at_once_and_poses_follow_the_rows(walker):
    """Decoding sees what teacher forcing sees, also when rows change their places, and one by one as together."""
    trained, _ = walker
    recipe = trained.recipe
    data = prepare(recipe, tokenizers=trained.tokenizers, report=lambda _: None)
    batch, device = collate_batch(data.valid, np.arange(5)).to(trained.device), trained.device
    model, writer = trained.model.eval(), trained.model.writer
    assert isinstance(writer, ActionWriter) and not model.capabilities.packed_rows
    memory, ids = model.read(batch), batch["target"].ids
    at_once = writer.head(writer(ids, batch["target"].mask, memory))
    state, order, walls = writer.start(memory, capacity=ids.shape[1]), torch.arange(5, device=device), 0
    turned = torch.tensor([3, 4, 0, 1, 2], device=device)
    for place in range(ids.shape[1]):
        step = writer.step(ids[order, place][:, None], state, align=True)
        blocked = step.state.navigation.get_blocked_actions()
        wanted = at_once[order, place].masked_fill(blocked, -torch.inf)
        torch.testing.assert_close(step.logits, wanted, atol=1e-5, rtol=0)
        walls += int(blocked.sum())
        torch.testing.assert_close(step.weights.sum(1), torch.ones(5, device=device))
        state, order = step.state.reorder(turned), order[turned]
    assert walls  # against which nobody chooses to walk
    alone = collate_batch(data.valid, np.arange(3, 4)).to(device)
    single = writer.head(writer(alone["target"].ids, None, model.read(alone)))
    torch.testing.assert_close(single[0], at_once[3, : single.shape[1]], atol=1e-5, rtol=0)


@torch.no_grad()
def test_what_is_seen_changes_what_is_done(walker):
    trained, _ = walker
    batch = trained.codec.collate(trained.codec.encode(lines()[:3], "line"), [[4, 5, 6]] * 3)
    blind = Batch(
        {
            **batch.fields,
            "ground": type(batch["ground"])(*batch["ground"].tensors[:3], batch["ground"].observations * 0),
        }
    )
    model = trained.model.eval()
    seen, unseen = (model.writer(batch["target"].ids, None, model.read(one)) for one in (batch, blind))
    assert (seen - unseen).abs().amax((1, 2)).min() > 1e-3


def test_several_walk_together_and_one_with_itself_is_itself(walker):
    trained, run = walker
    both = Walker(
        Ensemble([trained.model, trained.model]).eval(), recipe=trained.recipe, tokenizers=trained.tokenizers, members=2
    )
    assert both.predict(lines()) == saccade.load(run).predict(lines())


def test_evaluation_tells_where_routes_end(walker):
    trained, _ = walker
    found = evaluate_corpora(trained, [HELDOUT])
    assert list(found.scores) == ["success", "place", "accuracy"] and found.sentences == 12
    assert found.scores["accuracy"].value <= found.scores["success"].value <= found.scores["place"].value


def test_runs_are_compared_by_success(walker):
    trained, run = walker
    pairs = read_route_pairs([HELDOUT])
    found = compare([run, run], pairs, samples=20)
    success = evaluate_corpora(trained, [HELDOUT]).scores["success"].value
    assert found.metric == "success" and [row.scores["success"] for row in found.rows] == [success, success]
    assert found.rows[1].difference.value == 0
    assert read_test_pairs(run, [HELDOUT], Kinds())[:12] == pairs


def test_a_view_shows_where_each_action_was_done(walker, tmp_path):
    trained, _ = walker
    line = '{"instruction": "turn left and go", "map": "embedded:worlds/0", "start": [3, 4, 0]}'
    seen = trained.view(line, "left forward stop")
    assert seen.labels["target"] == ["3,4 ↑ left", "3,4 ← forward", "2,4 ← stop", "<end>"]
    assert seen.labels["source"] == ["turn", "left", "and", "go", "<end>"]
    assert seen.input == "turn left and go"
    assert [list(pose) for pose in seen.route.poses] == [[3, 4, 0], [3, 4, 270], [2, 4, 270]]
    [cross] = seen.maps
    assert cross.weights.shape == (1, 4, 5)
    assert seen.save(tmp_path / "a.png").stat().st_size > 10_000
    assert "2,4 ← stop" in seen.text() and "2,4" in seen.html()


def test_lines_that_cannot_be_followed_are_reported_by_number(walker):
    trained, _ = walker
    good = lines()[0]
    with pytest.raises(SaccadeError, match="line 2: not valid JSON"):
        trained.predict([good, "turn left"])
    found, results = [], trained.stream(iter([good, "turn left"]))
    with pytest.raises(SaccadeError, match="line 2: not valid JSON"):
        found += results  # what stands before it is not lost
    assert trained.predict(["", good])[0] == ""
    with pytest.raises(SaccadeError, match="the model was made for at most 200"):
        trained.predict([json.dumps({**json.loads(good), "instruction": "go " * 300})])


def test_maps_of_this_machine_are_not_opened_for_whoever_asks(walker):
    serving = pytest.importorskip("saccade.serve.app")
    with pytest.raises(SaccadeError, match=r"walker has inputs that cannot be sent over HTTP; use `saccade predict`"):
        serving.create_app({"walker": walker[0]})


def test_fields_are_what_a_line_is(walker):
    trained, _ = walker
    line = json.loads(lines()[0])
    typed = {name: line[name] for name in trained.fields} | {"start": ", ".join(map(str, line["start"]))}
    assert trained.predict([json.dumps(typed)]) == trained.predict([lines()[0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task=translate", 'task = "translate" goes with writer.kind = another kind, got "actions"'),
        ("writer.kind=tokens", 'task = "navigate" goes with writer.kind = "actions", got "tokens"'),
        ("tokenizer.shared=true", "actions have a vocabulary of their own"),
        ("tokenizer.kind=bpe", "actions have a vocabulary of their own"),
        ("train.metric=bleu", 'train.metric = "bleu" does not measure routes; it is one of loss, success, accuracy'),
        ("predict.replace_unknown=true", "no word of an instruction is an action"),
        ("data.stream=true", "routes are read as a whole"),
        ("objectives=[{kind='r-drop'}]", 'a writer of kind "actions" cannot be trained by the objective "r-drop"'),
        ("reader={kind='none'}", 'task = "navigate" reads instructions; set reader.kind = "tokens"'),
    ],
)
def test_what_does_not_go_with_walking_is_refused(change, message):
    with pytest.raises(SaccadeError, match=message):
        load("listen-attend-walk", overrides=["writer={kind='tokens'}"] if change == "writer.kind=tokens" else [change])


@pytest.mark.slow
def test_tiny_walks_in_worlds_that_it_never_saw(tmp_path, monkeypatch):
    """Enough instructions in held-out worlds are followed to the right place, looking the right way."""
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    trained = saccade.train("listen-attend-walk", tiny=True, run="x")
    assert time.process_time() - begin < 180
    found = evaluate_corpora(trained, [Corpus(files=("embedded:worlds-heldout",))])
    assert get_demonstration("listen-attend-walk").target.is_reached(found.scores["success"].value)
