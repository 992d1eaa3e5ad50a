"""Import a folder, compare the run with the original in float64, export it, and compare what transformers loads."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from draws import LETTERS, Draw
from tokenizers import Tokenizer
from torch import Tensor, nn

from saccade.config.load import override
from saccade.data.batching.batch import Batch, Frames, Pictures, pad
from saccade.data.media.frames import extract_features
from saccade.data.tokenization.text_pairs import encode_texts
from saccade.data.tokenization.tokenizers import END, START, UNKNOWN
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.layers.attention.positions import Sinusoidal
from saccade.model.readers.tokens import get_segment_ids
from saccade.model.run import Run, load_run
from saccade.model.writers.tokens import shift_right
from saccade.train.objectives.terms import compute_token_losses

NARROW, TO_FLOAT = torch.float32, Tensor.float
CLOSE = 1e-8  # absolute and relative difference that rounding in float64 may cause in these tiny models
STEPS = 7  # tokens that are generated
SMOOTHING = 0.1
# Keys that published files contain and that have no effect on the outputs.
INERT_KEYS: dict[str, Any] = {
    "torch_dtype": "float16", "gradient_checkpointing": False, "use_cache": True, "output_past": True,
    "task_specific_params": {"summarization": {"max_length": 142, "num_beams": 4}}, "transformers_version": "4.11.0",
    "_name_or_path": "somewhere", "initializer_range": 0.02, "num_beams": 4, "no_repeat_ngram_size": 0,
    "_attn_implementation_autoset": True, "tokenizer_class": None, "output_attentions": False,
}  # fmt: skip
OTHER_NAMES = {  # an early name; a model that is published for generation
    "T5WithLMHeadModel": "T5ForConditionalGeneration", "BartModel": "BartForConditionalGeneration",
}  # fmt: skip
Pairs = dict[str, tuple[Any, Any]]  # what both models computed, by name


class Refusal(NamedTuple):
    stage: str  # "import" or "export"
    message: str


# ---- the original


def write_folder(draw: Draw, folder: Path, rng: Random, *, published: bool = False) -> None:
    """Write the folder of a model with random weights; zeros and ones would hide mistakes.

    With `published`, config.json contains the keys of the draw and no others.
    """
    import transformers

    torch.manual_seed(rng.randrange(2**31))
    architecture = getattr(transformers, draw.architecture)
    model = architecture(architecture.config_class(**draw.config)).float()
    if draw.architecture == "T5ForConditionalGeneration" and draw.config.get("tie_word_embeddings") is False:
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name == "final_logits_bias" or (tensor.requires_grad and "encoder.embed_positions" not in name):
            nn.init.normal_(tensor, std=0.4)
    tensors = dict(model.named_parameters())
    for bias in ("cls.predictions.bias", "lm_head.bias", "predictions.bias"):  # stored twice if the output is not tied
        if (copy := bias.replace("bias", "decoder.bias")) in tensors and bias in tensors:
            tensors[copy].data.copy_(tensors[bias])
    model.save_pretrained(folder)
    path = folder / "config.json"
    values, defaults = json.loads(path.read_text()), json.loads(json.dumps(architecture.config_class().to_dict()))
    if published:
        path.write_text(json.dumps(draw.config))
    elif rng.random() < 0.5:  # as in files that were written by hand, or by other versions
        kept = {"model_type", "architectures", "vocab_size"}
        omitted = {key for key in values if key not in kept and key in defaults and values[key] == defaults[key]}
        values = {key: value for key, value in values.items() if key not in omitted or rng.random() < 0.5}
        values |= {key: value for key, value in INERT_KEYS.items() if key not in values and rng.random() < 0.5}
        path.write_text(json.dumps(values))
    if draw.tokenizer is not None:
        draw.tokenizer.save(str(folder / "tokenizer.json"))
    if draw.preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(draw.preprocessor))


def load_theirs(folder: Path) -> Any:
    """Load a folder with transformers, which must find every tensor that it needs and use every one that it finds."""
    import transformers

    names = json.loads((folder / "config.json").read_text()).get("architectures") or ["BertForPreTraining"]
    name = OTHER_NAMES.get(names[0], names[0])
    model, notes = getattr(transformers, name).from_pretrained(folder, output_loading_info=True, dtype=NARROW)
    assert not notes["missing_keys"], f"transformers misses {notes['missing_keys']}"
    assert not notes["unexpected_keys"], f"transformers has no {notes['unexpected_keys']}"
    return model.eval().double()


def set_types(narrow: torch.dtype, to_float: Callable[..., Tensor]) -> None:
    torch.float32, torch.float, Tensor.float = narrow, narrow, to_float  # type: ignore[misc]
    torch.set_default_dtype(narrow)


def keep_narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function compute in float32 inside of `widen`, as ours does: its rounding shows in the outputs."""

    def compute(*arguments: Any, **options: Any) -> Any:
        set_types(NARROW, TO_FLOAT)
        try:
            return function(*arguments, **options)
        finally:
            set_types(torch.float64, Tensor.double)

    return compute


@contextlib.contextmanager
def widen() -> Iterator[None]:
    """Let transformers compute in float64 what it computes in float32 whatever the type of the weights."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.models.t5.modeling_t5 import T5Attention

    rotate, bucket = LlamaRotaryEmbedding.forward, T5Attention._relative_position_bucket
    LlamaRotaryEmbedding.forward = keep_narrow(rotate)
    T5Attention._relative_position_bucket = staticmethod(keep_narrow(bucket))
    set_types(torch.float64, Tensor.double)
    try:
        yield
    finally:
        set_types(NARROW, TO_FLOAT)
        LlamaRotaryEmbedding.forward = rotate
        T5Attention._relative_position_bucket = staticmethod(bucket)


def share_constants(theirs: Any, run: Run) -> None:
    """Give the original our rotary frequencies and sinusoids, which both compute in float32, after comparing them."""
    for module in theirs.modules():
        if hasattr(module, "inv_freq"):
            part: Any = run.model.reader if run.recipe.writer.is_label_head else run.model.writer
            ours = part.stack.blocks[0].self.rotary.get_frequencies(torch.device("cpu"))
            torch.testing.assert_close(module.inv_freq.float(), ours, atol=0.0, rtol=1e-6)
            module.inv_freq = ours
    if theirs.config.model_type == "xlnet":
        transformer = getattr(theirs, "transformer", theirs)
        original, width = transformer.relative_positional_encoding, theirs.config.d_model

        def encode(qlen: int, klen: int, bsz: int | None = None, **_: Any) -> Tensor:
            sinusoids = Sinusoidal(width, layout="concatenated")(torch.arange(klen, -qlen, -1)[None])[0].double()
            torch.testing.assert_close(original(qlen, klen, bsz)[:, 0], sinusoids, atol=1e-5, rtol=0)
            return sinusoids[:, None].expand(-1, bsz or 1, -1)

        transformer.relative_positional_encoding = encode
    if theirs.config.model_type == "whisper":
        table = theirs.model.encoder.embed_positions.weight
        ours = run.model.reader.positions(torch.arange(len(table))[None])[0]
        torch.testing.assert_close(table.float(), ours.float(), atol=1e-5, rtol=0)
        table.copy_(ours)


# ---- comparisons


class Comparison:
    """The run, the original, and texts for both; `order` has the foreign id of each of our ids."""

    def __init__(self, run: Run, theirs: Any, folder: Path, rng: Random) -> None:
        self.run, self.theirs, self.rng = run, theirs, rng
        self.config = theirs.config
        self.num_buckets = getattr(theirs.config, "num_buckets", None)
        self.architecture: str = type(theirs).__name__
        path = folder / "tokenizer.json"
        self.core = Tokenizer.from_file(str(path)) if path.is_file() else None
        self.order = torch.tensor(run.tokenizers.target.library_ids)

    @property
    def known(self) -> Tensor:
        """Which of our ids the original has."""
        return self.order < self.config.vocab_size

    def draw_text(self, shortest: int = 0, longest: int = 11) -> str:
        text = "".join(self.rng.choices(LETTERS[1:] + "  ", k=self.rng.randint(shortest, longest))).strip()
        return text or "a" * shortest

    def encode_theirs(self, texts: Sequence[str]) -> list[int]:
        assert self.core is not None
        return self.core.encode(*texts).ids

    def check_ids(self, ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> None:
        assert [[int(self.order[token]) for token in row] for row in ours] == [list(row) for row in theirs], "token ids"

    def pad_theirs(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        padding = self.config.pad_token_id or 0
        padding = padding if isinstance(padding, int) else 0
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}

    def build_predictor(self) -> Any:
        recipe = self.run.recipe
        return recipe.task.get_predictor(recipe)(self.run.model, recipe=recipe, tokenizers=self.run.tokenizers)

    # ---- encoder-decoders

    def compare_seq2seq(self) -> Pairs:
        texts, outputs = [self.draw_text() for _ in range(3)], [self.draw_text(1) for _ in range(3)]
        source, target = (tokenizer.encode_all(rows) for tokenizer, rows in (
            (self.run.tokenizers.source, texts), (self.run.tokenizers.target, outputs)
        ))  # fmt: skip
        rows, labels = ([self.encode_theirs([text]) for text in some] for some in (texts, outputs))
        self.check_ids(source, rows)
        self.check_ids(target, labels)
        inputs = self.pad_theirs(rows)
        found = self.compare_target(Batch({"source": pad(source), "target": pad(target)}), inputs, labels)
        scores = self.build_predictor().score(list(zip(texts, outputs, strict=True)))
        found["scores"] = (torch.tensor(scores), found["log_probs"][1].float())
        texts = [text or "a" for text in texts]  # the output for an empty text is empty here
        return found | self.compare_greedy(texts, self.pad_theirs([self.encode_theirs([text]) for text in texts]))

    def compare_target(self, batch: Batch, inputs: Mapping[str, Tensor], labels: Sequence[Sequence[int]]) -> Pairs:
        """Logits, log-probabilities and smoothed loss of given outputs."""
        target, start = batch["target"], self.get_decoder_start()
        seen = torch.nn.utils.rnn.pad_sequence([torch.tensor([start, *row[:-1]]) for row in labels], batch_first=True)
        with widen():
            logits = self.theirs(**inputs, decoder_input_ids=seen).logits[target.mask]
        model = self.run.model
        hidden = model.writer(shift_right(target.ids, START), target.mask, model.read(batch))
        wanted = torch.cat([torch.tensor(row) for row in labels])
        losses = nn.functional.cross_entropy(logits, wanted, reduction="none")
        smoothed = nn.functional.cross_entropy(logits, wanted, reduction="sum", label_smoothing=SMOOTHING)
        ours = compute_token_losses(model.writer, hidden, target.ids, target.mask, SMOOTHING)
        sums = torch.stack([-part.sum() for part in losses.split([len(row) for row in labels])])
        return {
            "logits": (model.writer.head(hidden)[target.mask][:, self.known], logits[:, self.order[self.known]]),
            "losses": (torch.stack(ours), torch.stack((smoothed, losses.sum()))),
            "log_probs": (sums, sums),
        }  # fmt: skip

    def get_decoder_start(self) -> int:
        first = self.config.decoder_start_token_id
        return int(self.config.pad_token_id if first is None else first)

    def compare_greedy(self, texts: Sequence[str], inputs: Mapping[str, Tensor]) -> Pairs:
        """Greedy outputs, END last where they end; the original begins with the tokens of the tokenizer, too."""
        prefix = [int(self.order[token]) for token in self.run.tokenizers.target.prefix_ids]
        options: dict[str, Any] = {"forced_bos_token_id": prefix[0]} if prefix else {}
        return self.compare_outputs(
            texts, inputs, len(prefix), decoder_start_token_id=self.get_decoder_start(), **options
        )

    def compare_outputs(
        self, texts: Sequence[str], inputs: Mapping[str, Tensor], before: int, skip: int = 1, **options: Any
    ) -> Pairs:
        steps, end = STEPS, self.config.eos_token_id
        ends = {int(self.order[END])} if end is None else {end} if isinstance(end, int) else set(end)
        never = [token for token in self.order[: UNKNOWN + 1].tolist() if token < self.config.vocab_size]  # nor do ours
        with widen(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = self.theirs.generate(
                **inputs, do_sample=False, num_beams=1, max_new_tokens=before + steps, use_cache=False,
                eos_token_id=sorted(ends), pad_token_id=next(iter(ends)), suppress_tokens=sorted(set(never) - ends),
                no_repeat_ngram_size=0, min_length=0, forced_eos_token_id=None, early_stopping=False, **options,
            )  # fmt: skip
        predictor = self.build_predictor()
        settings = ["predict.beam=1", "predict.n_best=1", f"predict.max_length={steps}"]
        settings += ["predict.sample=false"] if predictor.continues_prompts else []
        decoding = override(self.run.recipe, settings).predict
        ours, expected = [], []
        for row, [best] in zip(theirs.tolist(), predictor.candidates(texts, decoding=decoding), strict=True):
            mine = [int(self.order[token]) for token in best.ids if token != END]
            other = row[skip + before :]
            cut = next((i for i, token in enumerate(other) if token in ends), len(other))
            count = steps - 2  # the two may count the last tokens differently
            ours.append(mine[before if mine[:before] == row[skip : skip + before] else 0 :][:count])
            expected.append(other[:cut][:count])
        return {"greedy": (ours, expected)}

    # ---- decoders

    def compare_language_model(self) -> Pairs:
        start = self.run.recipe.writer.start_token  # type: ignore[union-attr]
        first = int(self.order[START if start == "own" else END])
        texts, target = [self.draw_text(1, 16) for _ in range(3)], self.run.tokenizers.target
        rows = [[first, *(ids[1:] if ids[:1] == [first] else ids)] for ids in (self.encode_theirs([t]) for t in texts)]
        mine = [[START, *ids[:-1]] for ids in target.encode_all(texts)]
        self.check_ids([row[1:] for row in mine], [row[1:] for row in rows])
        found: Pairs = {}
        if self.architecture.startswith("Reformer"):  # it adapts to the first length that it sees, and to padding
            for i, (own, row) in enumerate(zip(mine, rows, strict=True)):
                found |= self.compare_documents([own], [row], f"{i}")
            return found
        found |= self.compare_documents(mine, rows)
        prompts = [text[:4].strip() or "a" for text in texts]
        for i, prompt in enumerate(prompts):
            ids = self.encode_theirs([prompt])
            row = torch.tensor([[first, *(ids[1:] if ids[:1] == [first] else ids)]])
            inputs = {"input_ids": row, "attention_mask": torch.ones_like(row)}
            greedy = self.compare_outputs([prompt], inputs, 0, skip=row.shape[1])
            found[f"greedy {i}"] = greedy["greedy"]
        score = self.build_predictor().score([(text[:2], text[2:]) for text in texts])
        logits = found["logits of all"][1].log_softmax(-1)
        for i, (text, row) in enumerate(zip(texts, rows, strict=True)):
            before = len(self.encode_theirs([text[:2]])) - (self.encode_theirs([""]) == [first])
            values = [float(logits[i, at - 1, row[at]]) for at in range(before + 1, len(row))]
            found[f"score {i}"] = (torch.tensor(score[i]), torch.tensor(sum(values)))
        del found["logits of all"]
        return found

    def compare_documents(self, mine: list[list[int]], rows: list[list[int]], name: str = "") -> Pairs:
        tokens, inputs = pad(mine), self.pad_theirs(rows)
        for module in self.theirs.modules():  # Reformer keeps the number of buckets of the first sequence
            if getattr(module, "num_buckets", None) is not None:
                module.num_buckets = self.num_buckets
        with widen():
            logits = self.theirs(**inputs).logits
        writer = self.run.model.writer
        hidden = writer(tokens.ids, tokens.mask, None)
        found: Pairs = {
            f"logits {name}": (
                writer.head(hidden)[tokens.mask][:, self.known], logits[tokens.mask][:, self.order[self.known]],
            ),
            "logits of all": (logits, logits),
        }  # fmt: skip
        keep = tokens.mask[:, 1:]
        if keep.any():
            wanted = inputs["input_ids"][:, 1:][keep]
            smoothed = nn.functional.cross_entropy(
                logits[:, :-1][keep], wanted, reduction="sum", label_smoothing=SMOOTHING
            )
            ours = compute_token_losses(writer, hidden[:, :-1], tokens.ids[:, 1:], keep, SMOOTHING)[0]
            found[f"loss {name}"] = (ours, smoothed)
        return found

    def compare_decoder_labels(self) -> Pairs:
        count = self.run.tokenizers.labels.num_texts if self.run.tokenizers.labels else 1
        texts = [tuple(self.draw_text(1, 8) for _ in range(count)) for _ in range(3)]
        mine = encode_texts(self.run.tokenizers.source, texts)
        rows = [self.encode_theirs(list(some)) for some in texts]
        self.check_ids([row[:-1] for row in mine], rows)
        source, inputs = pad(mine), self.pad_theirs(rows)
        real = inputs["attention_mask"].bool()
        with widen():
            logits = self.theirs(**inputs).logits
        found = self.run.model.writer(self.run.model.read(Batch({"source": source})))
        if found.dim() == 3:
            return {"logits": (found[:, : real.shape[1]][real], logits[real])}
        return {"logits": (found, logits)}

    # ---- encoders

    def draw_inputs(self) -> tuple[Any, dict[str, Tensor]]:
        labels = self.run.tokenizers.labels
        counts = [labels.num_texts] * 3 if labels is not None else [1, 2, 1]
        texts = [tuple(self.draw_text(0, 7) for _ in range(count)) for count in counts]
        if not self.run.recipe.reader.text.segments and labels is None:  # type: ignore[union-attr]
            texts = [some[:1] for some in texts]
        mine = encode_texts(self.run.tokenizers.source, texts)
        self.check_ids(mine, [self.encode_theirs(some) for some in texts])
        assert self.core is not None
        inputs = self.pad_theirs([self.encode_theirs(some) for some in texts])
        types = torch.zeros_like(inputs["input_ids"])
        for row, some in zip(types, texts, strict=True):
            ids = self.core.encode(*some).type_ids
            row[: len(ids)] = torch.tensor(ids)
        if getattr(self.config, "type_vocab_size", 0):
            inputs["token_type_ids"] = types.clamp(max=self.config.type_vocab_size - 1)
        return pad(mine), inputs

    def compare_encoder(self) -> Pairs:
        tokens, inputs = self.draw_inputs()
        with widen():
            theirs = self.theirs(**inputs)
        model, keep = self.run.model, tokens.mask
        memory, writer = model.read(Batch({"source": tokens})), self.run.model.writer
        if self.run.recipe.task.predicts_labels:
            found = writer(memory)
            each = found.dim() == 3
            return {"logits": (found[keep] if each else found, theirs.logits[keep] if each else theirs.logits)}
        found = {}
        if "last_hidden_state" in theirs:
            found["states"] = (memory.states[keep], theirs.last_hidden_state[keep])
            if theirs.get("pooler_output") is not None:
                found["pooled"] = (writer.hidden(memory.states[:, 0]), theirs.pooler_output)
            return found
        logits = theirs.get("logits", theirs.get("prediction_logits"))[keep]
        pairs = theirs.get("seq_relationship_logits", theirs.get("sop_logits"))
        found["logits"] = (writer.head(writer(memory.states[keep]))[:, self.known], logits[:, self.order[self.known]])
        if pairs is not None:
            found["pairs"] = (writer.compute_pair_logits(memory), pairs)
        return found

    def compare_second_pass(self) -> Pairs:
        """Classifiers with a decoder; they find the end token in a batch of any form."""
        count = self.run.tokenizers.labels.num_texts if self.run.tokenizers.labels else 1
        texts = [tuple(self.draw_text(1, 7) for _ in range(count)) for _ in range(3)]
        mine = encode_texts(self.run.tokenizers.source, texts)
        rows = [self.encode_theirs(some) for some in texts]
        self.check_ids(mine, rows)
        with widen():
            logits = self.theirs(**self.pad_theirs(rows)).logits
        found = self.run.model.writer(self.run.model.read(Batch({"source": pad(mine)})))
        keep = pad(mine).mask
        return {"logits": (found[keep], logits[keep]) if found.dim() == 3 else (found, logits)}

    def compare_xlnet(self) -> Pairs:
        """One text at a time: the original pools the last position, padding or not."""
        found: Pairs = {}
        labels = self.run.tokenizers.labels
        for i in range(3):
            count = self.rng.choice((1, 2)) if labels is None else labels.num_texts
            texts = tuple(self.draw_text(1, 7) for _ in range(count))
            [mine] = encode_texts(self.run.tokenizers.source, [texts])
            self.check_ids([mine], [self.encode_theirs(texts)])
            given = torch.tensor([mine])
            segments, model = get_segment_ids(given, None), self.run.model
            inputs: dict[str, Tensor] = {"input_ids": self.order[given], "token_type_ids": segments}
            keep = torch.ones_like(given, dtype=torch.bool)
            if self.architecture.endswith("LMHeadModel"):
                count = min(2, len(mine) - 1)  # a query that may attend to nothing has no meaning
                at = torch.tensor([self.rng.sample(range(len(mine)), count)])
                when = torch.full(given.shape, -1).scatter(1, at, torch.arange(count)[None])
                hides = when[:, :, None] <= when[:, None, :]
                hides &= when[:, None, :] >= 0
                inputs["perm_mask"] = hides.double()
                inputs["target_mapping"] = nn.functional.one_hot(at, len(mine)).double()
                query = model.writer(model.reader, given, when, at=at, keep=keep, segments=segments).query
                ours = model.writer.head(query)[..., self.known]
            else:
                memory = model.reader(given, keep)
                ours = memory.states if self.architecture.endswith("Model") else model.writer(memory)
            with widen():
                theirs = self.theirs(**inputs)
            if "last_hidden_state" in theirs:
                found[f"states {i}"] = (ours, theirs.last_hidden_state)
            elif self.architecture.endswith("LMHeadModel"):
                found[f"logits {i}"] = (ours, theirs.logits[..., self.order[self.known]])
            else:
                found[f"logits {i}"] = (ours, theirs.logits)
        return found

    # ---- pictures and sound

    def compare_pictures(self) -> Pairs:
        reader: Any = self.run.recipe.reader
        generator = torch.Generator().manual_seed(self.rng.randrange(2**31))
        pixels = torch.randint(0, 256, (3, 3, *reader.image_shape), generator=generator, dtype=torch.uint8)
        mean, std = (torch.tensor(x, dtype=torch.float64).view(3, 1, 1) for x in (reader.mean, reader.std))
        high, wide = (side // reader.patch_size for side in reader.image_shape)
        memory = self.run.model.read(Batch({"source": Pictures(pixels, torch.ones(3, high * wide + 1).bool())}))
        with widen():
            theirs = self.theirs((pixels.double() / 255 - mean) / std)
        if self.run.tokenizers.labels is not None:
            return {"logits": (self.run.model.writer(memory), theirs.logits)}
        pooled = {"pooled": (self.run.model.writer.hidden(memory.states[:, 0]), theirs.pooler_output)}
        return {"states": (memory.states, theirs.last_hidden_state), **pooled}

    def compare_speech(self) -> Pairs:
        reader: Any = self.run.recipe.reader
        noise = np.random.default_rng(self.rng.randrange(2**31))
        sounds = [(0.1 * noise.standard_normal(length)).astype(np.float32) for length in (16_000, 9_001, 3_217)]
        frames = torch.from_numpy(
            np.stack([extract_features(sound, 16_000, reader.sound) for sound in sounds])
        ).double()
        target = self.run.tokenizers.target.encode_all([self.draw_text(1, 5) for _ in range(3)])
        labels = [[int(self.order[token]) for token in row] for row in target]
        batch = Batch({"source": Frames(frames, torch.ones(frames.shape[:2]).bool()), "target": pad(target)})
        return self.compare_target(batch, {"input_features": frames.mT}, labels)

    def run_all(self) -> Pairs:
        kind = self.config.model_type
        compare: Callable[[], Pairs]
        if kind in ("bert", "roberta", "albert"):
            compare = self.compare_encoder
        elif kind in ("bart", "marian", "t5"):
            if self.run.recipe.task.predicts_labels:
                compare = self.compare_second_pass
            else:
                compare = self.compare_seq2seq if self.run.recipe.task.writes_stepwise else self.compare_encoder
        elif kind in ("gpt2", "gpt_neo", "llama", "reformer"):
            compare = (
                self.compare_decoder_labels if self.run.recipe.task.predicts_labels else self.compare_language_model
            )
        else:
            compare = {"xlnet": self.compare_xlnet, "vit": self.compare_pictures, "whisper": self.compare_speech}[kind]
        return compare()


def check_pairs(pairs: Pairs, stage: str, architecture: str) -> None:
    for name, (ours, theirs) in pairs.items():  # XLNet: its biases are stored as float32 after scaling
        if not isinstance(ours, Tensor):
            assert ours == theirs, f"{stage}: {name}: {ours} instead of {theirs}"
            continue
        close = 2e-5 if ours.dtype == torch.float32 else 1e-6 if architecture.startswith("XLNet") else CLOSE
        assert ours.shape == theirs.shape, (
            f"{stage}: {name} has the shape {tuple(ours.shape)}, not {tuple(theirs.shape)}"
        )
        difference = float((ours - theirs).abs().max()) if ours.numel() else 0.0
        scale = max(1.0, float(theirs.abs().max())) if ours.numel() else 1.0
        assert difference <= close * scale, f"{stage}: {name} differs by {difference:.2g}"


@torch.no_grad()
def check_both_ways(folder: Path, work: Path, rng: Random) -> Refusal | None:
    """Import, compare, export, load with transformers and compare again; the refusal if there was one."""
    try:
        run = load_run(import_folder(str(folder), str(work / "run")).path)
    except SaccadeError as error:
        assert "\n" not in str(error), "a message of several lines"
        return Refusal("import", str(error))
    run.model.double().eval()
    seed = rng.randrange(2**31)
    for stage in ("import", "export"):
        if stage == "export":
            try:
                folder, _ = export_run(run.path, work / "out")
            except SaccadeError as error:
                return Refusal("export", str(error))
        theirs = load_theirs(folder)
        share_constants(theirs, run)
        check_pairs(Comparison(run, theirs, folder, Random(seed)).run_all(), stage, type(theirs).__name__)
    return None
