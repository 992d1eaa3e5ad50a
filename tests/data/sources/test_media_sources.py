"""How pictures and their texts are found."""

import gzip
import json
import os
import tarfile

import pytest
from PIL import Image

from saccade.config.schema import Corpus
from saccade.data.sources import media
from saccade.data.sources.media import hash_media, list_files, read_media
from saccade.errors import SaccadeError


def rows(*files, wanted="text", columns=None, examples=None):
    corpus = Corpus(files=tuple(map(str, files)), columns=columns, examples=examples)
    return [(path.rsplit("/", 1)[-1], text) for _, path, text in read_media(corpus, medium="picture", target=wanted)]


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 3)).save(path, None if path.suffix else "PNG")
    return path


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.png"):
        picture(tmp_path / "data" / name)
    return tmp_path / "data"


def test_metadata_name_files_and_texts(folder):
    (folder / "metadata.jsonl").write_text(
        '{"file_name": "a.png", "text": "one"}\n{"file_name": "b.png", "text": "two"}\n'
    )
    assert rows(folder) == [("a.png", "one"), ("b.png", "two")]
    assert rows(folder, examples=1) == [("a.png", "one")]


def test_metadata_may_be_a_csv_with_other_columns(folder):
    (folder / "metadata.csv").write_text("file_name,kind,label\na.png,x,cat\nb.png,y,dog\n")
    assert rows(folder, wanted="label") == [("a.png", "cat"), ("b.png", "dog")]
    assert rows(folder, columns=("file_name", "kind")) == [("a.png", "x"), ("b.png", "y")]


def test_the_columns_of_a_folder_of_sound_may_be_those_of_hugging_face(folder):
    (folder / "metadata.csv").write_text("file_name,speaker,transcription\na.png,1,one two\n")
    assert rows(folder) == [("a.png", "one two")]


def test_a_list_of_captions_is_a_row_for_each(folder):
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "captions": ["one", "uno"]}\n')
    assert rows(folder) == [("a.png", "one"), ("a.png", "uno")]


def test_folders_are_classes(tmp_path):
    for name in ("cat/1.png", "dog/2.JPG", "cat/deep/3.png", "cat/notes.txt", ".hidden/4.png"):
        picture(tmp_path / name) if "txt" not in name else (tmp_path / name).write_text("")
    assert rows(tmp_path, wanted="label") == [("1.png", "cat"), ("3.png", "cat"), ("2.JPG", "dog")]


def test_the_folder_of_a_split_is_found(tmp_path):
    picture(tmp_path / "train/cat/1.png")
    picture(tmp_path / "test/cat/2.png")
    assert rows(tmp_path, wanted="label") == [("1.png", "cat")]


def test_pictures_and_texts_may_be_two_files(tmp_path):
    picture(tmp_path / "x/images/1.png")
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "x", "x")
    notes = tmp_path / "notes.jsonl.gz"
    notes.write_bytes(gzip.compress(json.dumps({"image": "1.png", "captions": ["a", "b"]}).encode()))
    assert rows(tmp_path / "x.tar", notes) == [("1.png", "a"), ("1.png", "b")]


def test_the_key_changes_with_every_byte_and_not_with_the_name_of_the_folder(folder, tmp_path):
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "one"}\n')
    first = hash_media(Corpus(files=(str(folder),)), medium="picture")
    moved = folder.rename(tmp_path / "moved")
    assert hash_media(Corpus(files=(str(moved),)), medium="picture") == first
    Image.new("RGB", (3, 3), "red").save(moved / "a.png")
    second = hash_media(Corpus(files=(str(moved),)), medium="picture")
    assert second != first
    (moved / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "two"}\n')
    assert hash_media(Corpus(files=(str(moved),)), medium="picture") != second


def test_a_missing_column_is_reported_with_those_that_there_are(folder):
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "x": "1", "y": "2"}\n')
    message = (
        r"metadata.jsonl:1: no column 'text' \(columns: file_name, x, y\); if they have other names, set columns = "
    )
    with pytest.raises(SaccadeError, match=message + r'\["file_name", "x"\]'):
        rows(folder)
    with pytest.raises(SaccadeError, match=r"no column 'z'"):
        rows(folder, columns=("file_name", "z"))
    with pytest.raises(SaccadeError, match=r"columns names the files and the texts, got z"):
        rows(folder, columns=("z",))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('"a.png", "question": null, "answer": "b"', "column 'question', got NoneType"),
        ('"a.png", "question": ["a", "b"], "answer": "b"', "column 'question', got list"),
        ('"a.png", "question": "a", "answer": ["b", null]', "column 'answer', got NoneType"),
        ('null, "question": "a", "answer": "b"', "column 'file_name', got NoneType"),
    ],
)
def test_a_cell_without_a_text_is_reported(folder, row, message):
    (folder / "metadata.jsonl").write_text(f'{{"file_name": {row}}}\n')
    with pytest.raises(SaccadeError, match=rf"metadata.jsonl:1: expected text in {message}"):
        list(read_media(Corpus(files=(str(folder),)), medium="picture", target="label", has_questions=True))


def test_files_outside_of_the_folder_are_refused(folder):
    picture(folder.parent / "secret.png")
    (folder / "metadata.jsonl").write_text('{"file_name": "../secret.png", "text": "one"}\n')
    with pytest.raises(SaccadeError, match=r"'../secret.png' is not in the folder"):
        rows(folder)


def test_links_to_files_elsewhere_are_files_of_the_folder(folder):
    """Links, as in a data set that was downloaded from the Hub."""
    (folder / "linked.png").symlink_to(picture(folder.parent / "blobs/0123"))
    (folder / "metadata.jsonl").write_text('{"file_name": "linked.png", "text": "one"}\n')
    assert rows(folder) == [("linked.png", "one")]


def test_classes_may_be_links_to_folders_elsewhere(tmp_path):
    for name in ("cat/1.png", "elsewhere/2.png"):
        picture(tmp_path / name)
    picture(tmp_path / "data" / "dog" / "3.png")
    for name in ("cat", "elsewhere"):
        (tmp_path / "data" / name).symlink_to(tmp_path / name)
    (tmp_path / "data" / "dog" / "around").symlink_to(tmp_path / "data")
    assert rows(tmp_path / "data", wanted="label") == [("1.png", "cat"), ("3.png", "dog"), ("2.png", "elsewhere")]


def test_folders_that_link_to_each_other_are_read_once_by_each_way(tmp_path):
    """Each is entered by its own name and through the link in the other, and not again from there."""
    for name, other in (("cat", "dog"), ("dog", "cat")):
        picture(tmp_path / name / "a.png")
        (tmp_path / name / "see also").symlink_to(tmp_path / other)
    found = [str(path.relative_to(tmp_path)) for path in media.find_files(tmp_path, (".png",))]
    assert found == ["cat/a.png", "cat/see also/a.png", "dog/a.png", "dog/see also/a.png"]


def test_the_folders_of_the_kernel_are_not_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(media, "KERNEL_FOLDERS", (f"{tmp_path}/proc",))
    for name in ("data/a.png", "proc/b.png"):
        picture(tmp_path / name)
    (tmp_path / "data" / "link").symlink_to(tmp_path / "proc")
    assert [path.name for path in media.find_files(tmp_path, (".png",))] == ["a.png"]
    assert [path.name for path in media.find_files(tmp_path / "proc", (".png",))] == ["b.png"]


def test_a_link_that_leads_nowhere_is_one_broken_file_and_a_pipe_is_none(tmp_path):
    for name in ("cat/1.png", "dog/2.png"):
        picture(tmp_path / name)
    (tmp_path / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(tmp_path / "dog" / "pipe.png")
    corpus = Corpus(files=(str(tmp_path),))
    before = hash_media(corpus, medium="picture")
    assert rows(tmp_path, wanted="label") == [("1.png", "cat"), ("gone.png", "cat"), ("2.png", "dog")]
    picture(tmp_path / "nowhere.png")
    assert hash_media(corpus, medium="picture") != before


def test_a_file_is_found_in_another_folder_where_only_one_has_its_name(tmp_path):
    for name in ("x/a.png", "x/b.png", "y/b.png"):
        picture(tmp_path / "data" / name)
    (tmp_path / "data/metadata.jsonl").write_text(
        "".join(f'{{"file_name": "{name}", "text": "one"}}\n' for name in ("a.png", "z/b.png"))
    )
    found = [
        path for _, path, _ in read_media(Corpus(files=(str(tmp_path / "data"),)), medium="picture", target="text")
    ]
    assert found == [str(tmp_path / "data/x/a.png"), str(tmp_path / "data/z/b.png")]


def test_what_cannot_be_a_corpus_of_pictures_is_reported(folder, tmp_path):
    with pytest.raises(SaccadeError, match=r"has no metadata.jsonl or metadata.csv"):
        rows(folder)
    with pytest.raises(SaccadeError, match=r"neither a metadata file nor a folder for each class"):
        rows(folder, wanted="label")
    with pytest.raises(SaccadeError, match=r"a.png is not a folder of files; expected a folder"):
        rows(folder / "a.png")
    with pytest.raises(SaccadeError, match=r"dato not found; did you mean data"):
        rows(tmp_path / "dato")
    with pytest.raises(SaccadeError, match=r"no embedded pictures or sound 'shape'; did you mean shapes"):
        rows("embedded:shape", wanted="label")


def test_names_stand_for_files(folder):
    assert list_files(str(folder / "a.png"), medium="picture") == [str(folder / "a.png")]
    assert list_files(str(folder), medium="picture") == [str(folder / "a.png"), str(folder / "b.png")]
    assert list_files("1" * 5000, medium="picture") == ["1" * 5000]  # refused where it is opened
    assert list_files("embedded:shapes-heldout/00002.png", medium="picture")[0].endswith("/00002.png")
    (folder / "empty").mkdir()
    with pytest.raises(SaccadeError, match=r"empty has no picture in it; expected files such as"):
        list_files(str(folder / "empty"), medium="picture")
