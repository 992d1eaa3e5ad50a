"""Spelled names and numbers: listen-attend-spell on CMU AN4, 948 utterances of 74 speakers in 13 cepstra.

    python benchmarks/an4.py --data FOLDER [--minutes 3.5] [--seeds 1] [--run FOLDER] [--out FOLDER] [KEY=VALUE ...]
    python benchmarks/an4.py --tiny

FOLDER holds `an4/{train,test_a}.npz`. Attention and CTC stand on one reader, and beams compare a mean of both.
Letters are written; with tokenizer.kind=words, whole words, of which there are 99. Then a letter that is spelled is not
the same as in a word. Nothing is held out: the last weights, a moving average, are scored once. A language model
of the training transcripts, which is trained too, has a say in the last of three searches. Six minutes in all on an
H200 by itself.
"""

from pathlib import Path

from packs import Pack, Study, run_study

STUDY = Study(
    name="an4",
    recipe="listen-attend-spell",
    settings=(
        "reader.sound.bands=13", "reader.strides=[1]", "reader.kernel=5",
        "reader.stack.layers=3", "reader.stack.dim=512", "reader.stack.dropout=0.4", "reader.dropout=0.2",
        "reader.changes={time_masks=2, time_share=0.05, band_masks=1, band_share=0.2, noise=0.2, speed=0.15}",
        "writer.stack.layers=1", "writer.stack.dim=384", "writer.stack.dropout=0.4", "writer.dropout=0.2",
        "writer.ctc=true", "objectives.0.ctc=0.5", "predict.ctc=0.5", "predict.beam=10",
        "train.batch_tokens=12288", "train.schedule.lr=0.001", "train.optimizer.decay=0.01", "train.ema=0.998",
    ),
    minutes=3.5,
    scores=("wer", "cer"),
    beside=({"what": "an4, attention alone", "ctc": 0.0},),
    language=(
        "writer.stack.layers=2", "writer.stack.dim=128", "writer.stack.heads=4", "writer.stack.ff=512",
        "writer.stack.dropout=0.3", "writer.dropout=0.3", "train.steps=600", "train.batch_tokens=4096",
        "train.valid_every=600", "train.save_every=600", "train.ema=0.99",
    ),
)  # fmt: skip


def pack_of(data: Path, folder: Path) -> Pack:
    return Pack([data / "an4/train.npz"], [data / "an4/test_a.npz"])


if __name__ == "__main__":
    run_study(STUDY, pack_of, __doc__)
