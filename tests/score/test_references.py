"""Every metric that comes with saccade has a test that compares it with the package that others compute it with."""

import ast
from pathlib import Path
from typing import NamedTuple

from saccade.config.metric import list_built_in

NO_PACKAGE = ""  # counts what a function of saccade recognizes


class Reference(NamedTuple):
    outputs: str  # kind of outputs of the metrics
    metrics: str  # names, separated by spaces
    package: str  # that the test compares them with
    test: str


ACCURACY = "test_accuracy.py::test_exact_match_and_characters_are_accuracies_of_scikit_learn"
ROUGE = "test_rouge.py::test_rouge_of_random_texts_is_that_of_rouge_score"
COCO_BLEU = "test_cider.py::test_bleu_of_captions_is_that_of_pycocoevalcap"
ANY_REFERENCE = "test_cider.py::test_exact_match_of_any_reference_is_the_accuracy_of_scikit_learn"
TAGS = "test_labels.py::test_scores_of_tags_are_those_of_scikit_learn_over_all_words"
RANKING = "test_language_metrics.py::test_ranking_scores_are_those_of_scikit_learn"
MOLECULES = "test_language_metrics.py::test_valid_molecules_are_counted_among_samples"

REFERENCES = [
    Reference("text", "bleu chrf ter", "sacrebleu", "test_bleu.py::test_scores_of_random_texts_are_those_of_sacrebleu"),
    Reference("text", "gleu", "nltk", "test_gleu.py::test_gleu_is_that_of_nltk"),
    Reference("text", "accuracy letters", "sklearn", ACCURACY),
    Reference("text", "wer cer", "jiwer", "test_error_rates.py::test_rates_are_those_of_jiwer"),
    Reference("text", "rouge1 rouge2 rougeL", "rouge_score", ROUGE),
    Reference("captions", "bleu-1 bleu-2 bleu-3 bleu-4", "pycocoevalcap", COCO_BLEU),
    Reference("captions", "cider", "pycocoevalcap", "test_cider.py::test_cider_is_that_of_pycocoevalcap"),
    Reference("captions", "accuracy", "sklearn", ANY_REFERENCE),
    Reference(
        "label", "accuracy f1 matthews", "sklearn", "test_labels.py::test_label_scores_are_those_of_scikit_learn"
    ),
    Reference("tags", "accuracy f1", "sklearn", TAGS),
    Reference("number", "pearson spearman", "scipy", "test_labels.py::test_correlations_are_those_of_scipy"),
    Reference("ranked labels", "top-5", "sklearn", "test_media.py::test_top_5_of_labels_is_that_of_scikit_learn"),
    Reference("language-model", "hit@10 ndcg@10", "sklearn", RANKING),
    Reference("language-model", "valid", NO_PACKAGE, MOLECULES),
]


def test_every_metric_has_a_reference() -> None:
    metrics = {(kind, metric.name) for metric in list_built_in() for kind in metric.outputs}
    assert metrics == {(one.outputs, name) for one in REFERENCES for name in one.metrics.split()}


def test_the_tests_exist_and_import_the_package() -> None:
    for reference in REFERENCES:
        file, _, name = reference.test.partition("::")
        tree = ast.parse(Path(__file__).with_name(file).read_text(encoding="utf-8"))
        found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        assert found, reference
        nodes = [*ast.walk(found[0]), *tree.body]
        imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        assert reference.package in ("", *(module.split(".")[0] for module in imported)), reference
