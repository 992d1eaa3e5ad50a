"""The search of the site finds the page that answers a question first, or second."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

# What people type, and the section that answers it; where it is the page as a whole, the page.
RIGHT = {
    "csv": "data/#csv-tsv-json-lines-and-parquet-columns",
    "excel": "data/#delimiters-encodings-excel",
    "delimiter": "data/#delimiters-encodings-excel",
    "encoding": "data/#delimiters-encodings-excel",
    "tsv": "data/#csv-tsv-json-lines-and-parquet-columns",
    "corpus cleaning": "data/#corpus-cleaning-filtering-duplicates-language-identification",
    "filtering": "data/#corpus-cleaning-filtering-duplicates-language-identification",
    "duplicates": "data/#corpus-cleaning-filtering-duplicates-language-identification",
    "language identification": "data/#corpus-cleaning-filtering-duplicates-language-identification",
    "sweep": "sweep/",
    "hyperparameter search": "sweep/",
    "grid search": "sweep/",
    "Optuna": "sweep/",
    "wandb": "training/#loggers-tensorboard-weights-biases-wandb-mlflow",
    "mlflow": "training/#loggers-tensorboard-weights-biases-wandb-mlflow",
    "tensorboard": "training/#loggers-tensorboard-weights-biases-wandb-mlflow",
    "quantization": "speed/#quantization-int8-weights",
    "int8": "speed/#quantization-int8-weights",
    "mixed precision": "training/#mixed-precision-gradient-accumulation-recomputation",
    "gradient accumulation": "training/#mixed-precision-gradient-accumulation-recomputation",
    "out of memory": "training/#out-of-memory-oom-smaller-micro-batches",
    "OOM": "training/#out-of-memory-oom-smaller-micro-batches",
    "resume": "training/#resume-from-a-checkpoint",
    "checkpoint": "training/#resume-from-a-checkpoint",
    "overfitting": "training/#overfitting-dropout-label-smoothing-early-stopping",
    "learning rate": "training/#learning-rate-and-warmup",
    "warmup": "training/#learning-rate-and-warmup",
    "beam search": "predicting/#beam-search-length-penalty-and-sampling-top-k-top-p",
    "length penalty": "predicting/#beam-search-length-penalty-and-sampling-top-k-top-p",
    "top-p": "predicting/#beam-search-length-penalty-and-sampling-top-k-top-p",
    "back-translation": "data/#back-translation-training-data-from-monolingual-text",
    "monolingual": "data/#back-translation-training-data-from-monolingual-text",
    "lm-evaluation-harness": "language-models/#lm-evaluation-harness-lm_eval-benchmarks",
    "lm_eval": "language-models/#lm-evaluation-harness-lm_eval-benchmarks",
    "terminology": "predicting/#terminology-constraints-lexically-constrained-decoding",
    "constrained decoding": "predicting/#terminology-constraints-lexically-constrained-decoding",
    "LoRA": "transfer/",
    "fine-tuning": "transfer/",
    "embedding": "encoders/#sentence-embeddings",
    "tokenizer": "data/#tokenizers-bpe-unigram-wordpiece-characters-bytes-words",
    "BPE": "data/#tokenizers-bpe-unigram-wordpiece-characters-bytes-words",
    "padding": "data/#batches-padding-and-packing",
    "packing": "data/#batches-padding-and-packing",
    "CUDA graphs": "speed/#training-on-gpu-cuda-graphs-and-fused-kernels",
    "multi-GPU": "training/#several-gpus-multi-gpu-training-with-ddp",
    "DDP": "training/#several-gpus-multi-gpu-training-with-ddp",
    "FSDP": "training/#fsdp-tensor-and-pipeline-parallelism",
    "export": "import/",
    "ONNX": "import/#onnx-torchscript-gguf-and-other-formats",
    "attention weights": "view/",
    "attention rollout": "view/#attention-rollout",
    "masking": "tour/#masking-one-convention",
    "positional encoding": "transformer/#positional-encoding-sinusoidal-learned-rotary-rope-alibi",
    "rotary": "transformer/#positional-encoding-sinusoidal-learned-rotary-rope-alibi",
    "label smoothing": "training/#overfitting-dropout-label-smoothing-early-stopping",
    "early stopping": "training/#how-long-steps-epochs-minutes-early-stopping",
    "perplexity": "language-models/#perplexity-how-likely-a-text-is",
    "BLEU": "predicting/#scores-bleu-chrf-ter-exact-match",
    "WER": "listen-attend-spell/#word-error-rate-wer-and-character-error-rate-cer",
    "seeds": "predicting/#statistical-significance-and-seeds-which-of-two-models-is-better",
    "custom metric": "adding-a-metric/",
    "custom task": "adding-a-task/",
    "plugin": "own-kinds/",
    "batch size": "training/#out-of-memory-oom-smaller-micro-batches",
    "beam": "predicting/#beam-search-length-penalty-and-sampling-top-k-top-p",
    "NaN": "faq/#the-loss-is-nan",
    "fp16": "faq/#mixed-precision-fp16-or-bf16",
    "pretrained": "transfer/#combining-two-runs-a-pretrained-encoder-and-a-pretrained-decoder",
    "fine-tune": "transfer/",
    "GPU": "training/#several-gpus-multi-gpu-training-with-ddp",
    "CUDA": "install/#cpu-cuda-macos-windows",
    "docker": "serve/#in-a-container",
    "serve": "serve/",
    "Hugging Face": "import/",
    "vocabulary mismatch": "faq/#vocabulary-mismatch-when-fine-tuning",
    "reproducibility": "faq/#do-two-trainings-give-the-same-weights-reproducibility",
    "hyperparameter": "training/#hyperparameters",
    "metadata.csv": "quickstart-recordings/#the-folder",
    "train.schedule.lr": "training/#learning-rate-and-warmup",
    "train.batch_tokens": "data/#batches-padding-and-packing",
    "train.patience": "training/#how-long-steps-epochs-minutes-early-stopping",
    "train.optimizer.eps": "configuration/#trainoptimizer",
    "data.filter.min_length": "configuration/#datafilter",
    "significance": "predicting/#statistical-significance-and-seeds-which-of-two-models-is-better",
}

Found = dict[str, list[list[str]]]  # of a term, the sections of each page, best first


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Results of the search worker of the built site for all terms, run by the JavaScript engine of playwright."""
    playwright = pytest.importorskip("playwright")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    [worker] = site.glob("assets/javascripts/workers/search.*.min.js")
    node = Path(playwright.__file__).parent / "driver" / "node"
    done = subprocess.run(
        [node, HERE / "search_rank.js", worker, site / "search" / "search_index.json"],
        input=json.dumps([*RIGHT]),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def get_page(section: str) -> str:
    return section.partition("#")[0]


@pytest.mark.parametrize("term", RIGHT)
def test_right_page_is_first_or_second(found: Found, term: str) -> None:
    assert get_page(RIGHT[term]) in [get_page(sections[0]) for sections in found[term][:2]]


@pytest.mark.parametrize("term", RIGHT)
def test_right_section_is_first_on_its_page(found: Found, term: str) -> None:
    [sections] = [sections for sections in found[term] if get_page(sections[0]) == get_page(RIGHT[term])]
    assert sections[0] == RIGHT[term]


def test_glossary_comes_after_the_right_page(found: Found) -> None:
    for term, right in RIGHT.items():
        pages = [get_page(sections[0]) for sections in found[term]]
        assert "glossary/" not in pages[: pages.index(get_page(right))], term
