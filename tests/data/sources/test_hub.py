import pytest

from saccade.config.schema import Corpus
from saccade.data.sources.pairs import content_key, is_hub, read_pairs
from saccade.errors import SaccadeError

datasets = pytest.importorskip("datasets")

ROWS = [{"translation": {"en": "a house", "de": "ein Haus"}}, {"translation": {"en": "two", "de": "zwei"}}]
COLUMNS = ("translation.en", "translation.de")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()


@pytest.fixture
def saved(tmp_path):
    datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.filterwarnings("default")
def test_a_saved_data_set_with_nested_columns(saved):
    corpus = Corpus(files=(str(saved),), columns=COLUMNS)

    assert list(read_pairs(corpus)) == [("a house", "ein Haus"), ("two", "zwei")]
    assert content_key(corpus) == content_key(corpus)


@pytest.mark.filterwarnings("default")
def test_a_folder_of_files(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text("en,de\na house,ein Haus\ntwo,zwei\n")
    corpus = Corpus(files=(str(tmp_path / "set"),), columns=("de", "en"), examples=1)

    assert list(read_pairs(corpus)) == [("ein Haus", "a house")]


@pytest.mark.filterwarnings("default")
def test_an_unknown_split_or_column_is_answered_with_the_known_ones(saved):
    with pytest.raises(SaccadeError, match=r"has no split 'trian'; did you mean train\? \(splits: train\)"):
        list(read_pairs(Corpus(files=(str(saved),), split="trian")))
    with pytest.raises(SaccadeError, match=r"saved\[train\]:1: no column 'translation.fr'"):
        list(read_pairs(Corpus(files=(str(saved),), columns=("translation.en", "translation.fr"))))


@pytest.mark.filterwarnings("default")
def test_a_data_set_that_cannot_be_loaded_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()

    with pytest.raises(SaccadeError, match="data set .* cannot be loaded") as error:
        list(read_pairs(Corpus(files=(str(tmp_path / "empty"),))))
    assert "\n" not in str(error.value)


def test_names_of_data_sets_are_told_from_files(tmp_path):
    assert is_hub("wmt14:de-en") and is_hub("owner/name") and is_hub(str(tmp_path))
    assert not is_hub("train.tsv") and not is_hub(str(tmp_path / "missing"))
