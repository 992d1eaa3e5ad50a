"""Archives of pictures are unpacked completely, or refused with the reason."""

import gzip
import io
import tarfile

import pytest

from saccade.config.schema import Corpus
from saccade.data.sources import archives
from saccade.data.sources.archives import unpack_archive
from saccade.data.sources.media import read_media, resolve_folder
from saccade.errors import SaccadeError

NAMES = [f"{kind}/{number}.png" for kind in ("cat", "dog") for number in range(4)]


def archive(path, names=NAMES, mode="w"):
    """Incompressible files, each a few blocks long."""
    with tarfile.open(path, mode) as made:
        for number, name in enumerate(names):
            content = bytes((number * 7 + i * i * 31 + i // 3) % 251 for i in range(2000))
            member = tarfile.TarInfo(f"all/{name}" if name in NAMES else name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return path


def labels(path):
    corpus = Corpus(files=(str(path),))
    return [
        (file.rpartition("/all/")[2], text) for _, file, text in read_media(corpus, medium="picture", target="label")
    ]


@pytest.mark.parametrize(("kind", "mode"), [("tar", "w"), ("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar.xz", "w:xz")])
def test_an_archive_is_unpacked_once_and_found_again(tmp_path, kind, mode):
    path = archive(tmp_path / f"x.{kind}", mode=mode)
    assert labels(path) == [(name, name.partition("/")[0]) for name in NAMES]
    corpus = Corpus(files=(str(path),))
    assert resolve_folder(corpus) == resolve_folder(corpus)


def test_an_archive_without_the_zeros_at_its_end_is_whole(tmp_path):
    path = archive(tmp_path / "x.tar")
    path.write_bytes(path.read_bytes()[: len(NAMES) * (512 + 2048)])
    assert len(labels(path)) == len(NAMES)


def damage(path, at, content):
    made = bytearray(path.read_bytes())
    made[at : at + len(content)] = content
    path.write_bytes(made)


def test_a_damaged_name_in_the_middle_is_no_end(tmp_path):
    path = archive(tmp_path / "x.tar")
    damage(path, 4 * (512 + 2048), b"\xff" * 300)
    with pytest.raises(SaccadeError, match=r"x.tar is not a whole archive \(there is no file at byte 10,240, where"):
        labels(path)


def test_a_packed_archive_is_checked_to_its_end(tmp_path):
    path = archive(tmp_path / "plain.tar")
    packed = bytearray(gzip.compress(path.read_bytes(), compresslevel=0))
    packed[1000] ^= 1  # inside of the first file
    (tmp_path / "x.tar.gz").write_bytes(packed)
    with pytest.raises(SaccadeError, match=r"x.tar.gz is not a whole archive \(CRC check failed"):
        labels(tmp_path / "x.tar.gz")


@pytest.mark.parametrize(("kind", "mode"), [("tar", "w"), ("tar.gz", "w:gz"), ("tar.xz", "w:xz")])
def test_a_truncated_archive_is_reported(tmp_path, kind, mode):
    path = archive(tmp_path / f"x.{kind}", mode=mode)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 5])
    with pytest.raises(SaccadeError, match=rf"x.{kind} is not a whole archive .*download it again"):
        labels(path)


def test_a_damaged_xz_is_reported(tmp_path):
    path = archive(tmp_path / "x.tar.xz", mode="w:xz")
    damage(path, path.stat().st_size // 2, bytes(range(100)))
    with pytest.raises(SaccadeError, match=r"x.tar.xz is not a whole archive \(Corrupt input data\)"):
        labels(path)


def test_a_text_that_is_called_an_archive_is_reported_in_one_line(tmp_path):
    (tmp_path / "x.tar.gz").write_text("no archive")
    with pytest.raises(SaccadeError) as caught:
        labels(tmp_path / "x.tar.gz")
    assert str(caught.value).endswith("is not a whole archive (truncated header); make or download it again")
    assert "\n" not in str(caught.value)


def test_an_archive_that_leaves_its_folder_is_refused(tmp_path):
    path = archive(tmp_path / "x.tar", ["../../a.png"])
    with pytest.raises(SaccadeError, match=r"x.tar has a file '\.\./\.\./a\.png' that would be written outside"):
        labels(path)


def test_a_file_cannot_be_a_folder_too(tmp_path):
    path = archive(tmp_path / "x.tar", ["a", "a/b.png"])
    with pytest.raises(SaccadeError, match=r"x.tar: 'a/b.png' cannot be unpacked, as a file and a folder"):
        labels(path)


def test_an_archive_with_nothing_in_it_is_named_as_the_user_names_it(tmp_path):
    path = archive(tmp_path / "x.tar", [])
    with pytest.raises(SaccadeError, match=rf"^{path} has neither a metadata file nor a folder for each class"):
        labels(path)


def test_links_are_left_out_and_counted_once(tmp_path, capsys):
    path = archive(tmp_path / "x.tar")
    with tarfile.open(path, "a") as made:
        made.addfile(tarfile.TarInfo("all/empty"), io.BytesIO())
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(f"all/cat/more{number}.png")
            member.type, member.linkname = kind, f"all/{NAMES[0]}"
            made.addfile(member)
    assert len(labels(path)) == len(NAMES)
    assert capsys.readouterr().err == (
        f"{path}: left out 3 links or devices, such as 'all/cat/more0.png', as only plain files are unpacked; "
        "to have what links lead to, pack with `tar --dereference --hard-dereference`\n"
    )


def test_an_archive_of_plain_files_is_unpacked_without_a_word(tmp_path, capsys):
    labels(archive(tmp_path / "x.tar"))
    assert capsys.readouterr().err == ""


def test_a_name_that_no_file_can_have_is_reported(tmp_path):
    path = archive(tmp_path / "x.tar", [f"cat/{'x' * 300}.png"])
    with pytest.raises(SaccadeError) as caught:
        labels(path)
    assert str(caught.value) == (
        f"{path}: the name 'cat/{'x' * 36}...' of 308 letters is too long for a file; pack it again with shorter names"
    )


@pytest.mark.parametrize(
    ("name", "limit", "message"),
    [
        (
            "SACCADE_ARCHIVE_BYTES",
            "2999",
            r"to 3,000 bytes or more, the limit is 2,999; if you trust it, set",
        ),
        (
            "SACCADE_ARCHIVE_FILES",
            "2",
            r"to 3 files or more, the limit is 2; .* SACCADE_ARCHIVE_FILES=30 in",
        ),
        ("SACCADE_ARCHIVE_RATIO", "3", r"to \d+ times its own size or more, the limit is 3; .* SACCADE_ARCHIVE_RATIO"),
    ],
)
def test_an_archive_that_becomes_too_large_is_refused_before_it_is_written(tmp_path, monkeypatch, name, limit, message):
    """972 kB may become 954 MB."""
    path = pack_zeros(tmp_path / "bomb.tar.gz", files=3, size=1000)
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(archives, "FREE_BYTES", 0)
    monkeypatch.setenv(name, limit)
    with pytest.raises(SaccadeError, match=message):
        unpack_archive(path)
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    monkeypatch.setenv(name, "100000")
    assert len(list(unpack_archive(path).iterdir())) == 3


def test_the_default_limits_refuse_a_bomb_and_leave_small_archives_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(archives, "FREE_BYTES", 10**6)
    assert unpack_archive(pack_zeros(tmp_path / "small.tar.gz", files=1, size=900_000)).is_dir()
    with pytest.raises(SaccadeError, match="times its own size or more, the limit is 200"):
        unpack_archive(pack_zeros(tmp_path / "large.tar.gz", files=2, size=900_000))


def test_a_limit_that_is_no_number_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SACCADE_ARCHIVE_FILES", "many")
    with pytest.raises(SaccadeError, match="SACCADE_ARCHIVE_FILES must be a whole number, such as .*, got 'many'"):
        unpack_archive(pack_zeros(tmp_path / "a.tar.gz", files=1, size=10))


def pack_zeros(path, *, files, size):
    with tarfile.open(path, "w:gz") as archive:
        for number in range(files):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    return path


def header(kind, size):
    member = tarfile.TarInfo("all/cat/0.png")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.USTAR_FORMAT)


FILE, END, BOMB = header(tarfile.REGTYPE, 3) + b"abc".ljust(512, b"\0"), bytes(1024), bytes(40 << 20)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(tarfile.XHDTYPE, len(BOMB)) + BOMB + FILE + END, "whole archive .it has a header of 41,943,040 bytes"),
        (header(tarfile.GNUTYPE_LONGNAME, len(BOMB)) + BOMB + FILE + END, "it has a header of 41,943,040 bytes"),
        (header(b"Q", len(BOMB)) + BOMB + FILE + END, "would be unpacked to .* times its own size"),
        (FILE + END + BOMB, "would be unpacked to .* times its own size"),
    ],
    ids=["header", "name", "unknown kind of file", "behind the end"],
)
def test_what_is_no_file_of_an_archive_counts_too(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(archives, "FREE_BYTES", 10 << 20)
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(content, compresslevel=9))
    with pytest.raises(SaccadeError, match=message):
        unpack_archive(path)


def test_an_archive_may_have_long_names(tmp_path):
    name = "/".join(["cat" * 20] * 30)
    path = archive(tmp_path / "x.tar.xz", names=[f"{name}.png"], mode="w:xz")
    assert (unpack_archive(path) / f"{name}.png").is_file()
