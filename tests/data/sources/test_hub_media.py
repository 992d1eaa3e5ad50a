"""Data sets with pictures or sound as `datasets` stores them: undecoded bytes in columns."""

import io
import wave
from pathlib import Path

import pytest
from PIL import Image

from saccade.config.schema import Corpus
from saccade.data.media.pictures import read_picture
from saccade.data.media.sound import read_sound
from saccade.data.sources.hub_media import is_media_dataset
from saccade.data.sources.media import hash_media, read_media
from saccade.errors import SaccadeError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()


def png(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (5, 3), colour).save(file, "PNG")
    return file.getvalue()


def wav(count: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(8000)
        written.writeframes(b"\1\0" * count)
    return file.getvalue()


def pictures() -> "datasets.Dataset":
    kinds = datasets.Features(
        img=datasets.Image(), label=datasets.ClassLabel(names=["red", "blue"]), captions=[datasets.Value("string")]
    )
    rows = [
        {"img": {"bytes": png("red"), "path": "x/a.png"}, "label": 0, "captions": ["all red", "a colour"]},
        {"img": {"bytes": png("blue"), "path": None}, "label": 1, "captions": ["all blue"]},
        {"img": None, "label": 1, "captions": ["nothing"]},
    ]
    return datasets.Dataset.from_list(rows, features=kinds)


@pytest.fixture
def saved_dataset(tmp_path) -> Path:
    datasets.DatasetDict(train=pictures()).save_to_disk(tmp_path / "saved_dataset")
    return tmp_path / "saved_dataset"


@pytest.fixture
def parquet(tmp_path) -> Path:
    """The layout of a data set on the Hub."""
    (tmp_path / "set/data").mkdir(parents=True)
    pictures().to_parquet(tmp_path / "set/data/train-00000-of-00001.parquet")
    return tmp_path / "set"


def rows(name: Path, wanted: str, medium: str = "picture", **more) -> list[tuple[str, str]]:
    corpus = Corpus(files=(str(name),), **more)
    return [(path, text) for _, path, text in read_media(corpus, medium=medium, target=wanted)]


@pytest.mark.parametrize("form", ["saved_dataset", "parquet"])
def test_pictures_with_classes_by_their_names(form, request):
    found = rows(request.getfixturevalue(form), "label")
    assert [text for _, text in found] == ["red", "blue", "blue"]
    assert read_picture(found[0][0], size=2)[0].min() == 255
    assert read_picture(found[1][0], size=2)[2].min() == 255
    with pytest.raises(SaccadeError, match="not found"):
        read_picture(found[2][0], size=2)


def test_captions_are_rows_of_their_own_and_columns_may_be_named(saved_dataset):
    assert [text for _, text in rows(saved_dataset, "text")] == ["all red", "a colour", "all blue", "nothing"]
    assert [text for _, text in rows(saved_dataset, "text", columns=("img", "label"), examples=1)] == ["red"]
    with pytest.raises(SaccadeError, match=r"no column 'title'"):
        rows(saved_dataset, "text", columns=("img", "title"))


def test_a_column_of_the_set_may_be_called_as_ours(tmp_path):
    given = [{"picture": {"bytes": png("red"), "path": None}, "file_name": "elsewhere/dog.png", "text": "a dog"}]
    datasets.Dataset.from_list(given).cast_column("picture", datasets.Image()).save_to_disk(tmp_path / "saved_dataset")
    [(path, text)] = rows(tmp_path / "saved_dataset", "text")
    assert (read_picture(path, size=2)[0].min(), text) == (255, "a dog")


def test_the_same_set_has_the_same_key(saved_dataset):
    corpus = Corpus(files=(str(saved_dataset),))
    assert hash_media(corpus, medium="picture") == hash_media(corpus, medium="picture")
    assert hash_media(corpus, medium="picture") != hash_media(
        Corpus(files=(str(saved_dataset),), examples=1), medium="picture"
    )


def test_sound_is_not_decoded_by_others(tmp_path):
    given = [{"audio": {"bytes": wav(count), "path": "a.wav"}, "text": str(count)} for count in (10, 20)]
    datasets.Dataset.from_list(given).cast_column("audio", datasets.Audio()).save_to_disk(tmp_path / "saved_dataset")
    found = rows(tmp_path / "saved_dataset", "text", "sound")
    assert [(len(read_sound(path).samples), text) for path, text in found] == [(10, "10"), (20, "20")]


def test_a_set_without_pictures_is_reported_in_one_line(tmp_path):
    datasets.Dataset.from_list([{"a": "1", "b": 2}]).save_to_disk(tmp_path / "saved_dataset")
    with pytest.raises(SaccadeError, match=r"has no column of pictures or sound, got a \(string\), b \(int64\)"):
        rows(tmp_path / "saved_dataset", "label")


def test_a_name_that_cannot_be_loaded_is_reported_in_one_line():
    with pytest.raises(SaccadeError, match=r"data set 'nobody/nothing' cannot be loaded") as error:
        rows("nobody/nothing", "label")
    assert "\n" not in str(error.value)


def test_an_unknown_split_is_reported(saved_dataset):
    with pytest.raises(SaccadeError, match=r"has no split 'trian'; did you mean train\?"):
        rows(saved_dataset, "label", split="trian")


def test_sets_are_distinguished_from_folders_and_archives(saved_dataset, parquet, tmp_path):
    (tmp_path / "plain").mkdir()
    assert (
        is_media_dataset(str(saved_dataset))
        and is_media_dataset(str(parquet))
        and is_media_dataset("owner/name")
        and is_media_dataset("owner/name:small")
    )
    assert (
        not is_media_dataset(str(tmp_path / "plain"))
        and not is_media_dataset("pictures.tar.gz")
        and not is_media_dataset("./x")
        and not is_media_dataset("nodir")
    )
    (tmp_path / "plain/metadata.parquet").write_bytes(b"")
    assert not is_media_dataset(str(tmp_path / "plain"))
    (tmp_path / "plain/more.parquet").write_bytes(b"")
    assert not is_media_dataset(str(tmp_path / "plain"))
