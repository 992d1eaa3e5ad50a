import pytest

from saccade.config.schema import Corpus
from saccade.data.sources.pairs import hash_pairs, is_dataset, read_pairs
from saccade.errors import SaccadeError

datasets = pytest.importorskip("datasets")

ROWS = [{"translation": {"en": "a house", "de": "ein Haus"}}, {"translation": {"en": "two", "de": "zwei"}}]
COLUMNS = ("translation.en", "translation.de")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()


@pytest.fixture
def saved_dataset(tmp_path):
    datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "saved_dataset")
    return tmp_path / "saved_dataset"


@pytest.mark.filterwarnings("default")
def test_a_saved_data_set_with_nested_columns(saved_dataset):
    corpus = Corpus(files=(str(saved_dataset),), columns=COLUMNS)

    assert list(read_pairs(corpus)) == [("a house", "ein Haus"), ("two", "zwei")]
    assert hash_pairs(corpus) == hash_pairs(corpus)


@pytest.mark.filterwarnings("default")
def test_a_folder_of_files(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text("en,de\na house,ein Haus\ntwo,zwei\n")
    corpus = Corpus(files=(str(tmp_path / "set"),), columns=("de", "en"), examples=1)

    assert list(read_pairs(corpus)) == [("ein Haus", "a house")]


@pytest.mark.filterwarnings("default")
def test_an_unknown_split_or_column_is_answered_with_the_known_ones(saved_dataset):
    with pytest.raises(SaccadeError, match=r"has no split 'trian'; did you mean train\? \(splits: train\)"):
        list(read_pairs(Corpus(files=(str(saved_dataset),), split="trian")))
    with pytest.raises(SaccadeError, match=r"saved_dataset\[train\]:1: no column 'translation.fr'"):
        list(read_pairs(Corpus(files=(str(saved_dataset),), columns=("translation.en", "translation.fr"))))


@pytest.mark.filterwarnings("default")
def test_a_data_set_that_cannot_be_loaded_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()

    with pytest.raises(SaccadeError, match="data set .* cannot be loaded") as error:
        list(read_pairs(Corpus(files=(str(tmp_path / "empty"),))))
    assert "\n" not in str(error.value)


def test_names_of_data_sets_are_distinguished_from_files(tmp_path):
    assert is_dataset("wmt14:de-en") and is_dataset("owner/name") and is_dataset(str(tmp_path))
    assert not is_dataset("train.tsv") and not is_dataset(str(tmp_path / "missing"))


def test_of_a_folder_that_is_no_data_set_the_files_are_named(tmp_path):
    for name in ("a.de", "a.en", ".hidden"):
        (tmp_path / name).write_text("x\n")
    with pytest.raises(SaccadeError, match=f"is no data set, give the files, such as {tmp_path}/a.de {tmp_path}/a.en$"):
        list(read_pairs(Corpus(files=(str(tmp_path),))))
