"""Spoken digits that are spelled: listen-attend-spell on the Free Spoken Digit Dataset, 2,400 recordings of 6 speakers.

    python benchmarks/fsdd.py --data FOLDER [--minutes 1.2] [--seeds 1] [--run FOLDER] [--out FOLDER] [KEY=VALUE ...]
    python benchmarks/fsdd.py --tiny

FOLDER holds `fsdd/{train,test_a}.tar.gz`, whose files are called DIGIT_SPEAKER_TAKE.wav. "accuracy" is the share of
digits of which every letter is right. No recording is held out: the last weights, a moving average, are scored once.
Bands keep their means: a digit is short, often one vowel, and what is the same all along it tells which one. With
--steps 1600, 17 minutes on one core.
"""

import tarfile
from pathlib import Path

from packs import Pack, Study, run_study, write_metadata

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STUDY = Study(
    name="fsdd",
    recipe="listen-attend-spell",
    settings=(
        "reader.sound.sample_rate=8000", "reader.sound.mel_bands=40", "reader.sound.normalize=whisper",
        "reader.strides=[1]", "reader.kernel=5",
        "reader.stack.layers=2", "reader.stack.dim=256", "reader.stack.dropout=0.3", "reader.dropout=0.1",
        "reader.augment={time_masks=1, time_mask_ratio=0.1, freq_masks=2, freq_mask_ratio=0.15, noise=0.15, "
        "speed=0.15}",
        "writer.stack.layers=1", "writer.stack.dim=256", "writer.ctc=true",
        "objectives.0.ctc_weight=0.3", "predict.ctc_weight=0.3", "predict.beam=5",
        "train.batch_tokens=4096", "train.schedule.lr=0.002", "train.ema=0.995",
    ),
    minutes=1.2,
    scores=("accuracy", "cer"),
)  # fmt: skip


def build_pack(data: Path, folder: Path) -> Pack:
    """Build folders of recordings, each with a metadata file of their spelled digits."""
    found = []
    for split in ("train", "test_a"):
        with tarfile.open(data / "fsdd" / f"{split}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        files = sorted(path.name for path in (folder / split).glob("*.wav"))
        write_metadata(folder / split, [(name, DIGITS[int(name.split("_")[0])]) for name in files])
        found.append([folder / split])
    return Pack(*found)


if __name__ == "__main__":
    run_study(STUDY, build_pack, __doc__)
