"""Spelled names and numbers: listen-attend-spell on CMU AN4, 948 utterances of 74 speakers in 13 cepstra.

    python benchmarks/an4.py --data FOLDER [--minutes 3.5] [--seeds 1] [--run FOLDER] [--out FOLDER] [KEY=VALUE ...]
    python benchmarks/an4.py --tiny

FOLDER contains `an4/{train,test_a}.npz`. An attention decoder and CTC share one encoder, and beam search uses a mean of
both scores. Outputs are letters; with tokenizer.kind=words, one of 99 words. There is no validation set: the final
weights, a moving average, are evaluated once. The last of three searches adds shallow fusion with a language model
that is trained on the training transcripts. It takes six minutes on an otherwise idle H200.
"""

from pathlib import Path

from packs import Pack, Study, run_study

STUDY = Study(
    name="an4",
    recipe="listen-attend-spell",
    settings=(
        "reader.sound.mel_bands=13", "reader.strides=[1]", "reader.kernel=5",
        "reader.stack.layers=3", "reader.stack.dim=512", "reader.stack.dropout=0.4", "reader.dropout=0.2",
        "reader.augment={time_masks=2, time_mask_ratio=0.05, freq_masks=1, freq_mask_ratio=0.2, noise=0.2, speed=0.15}",
        "writer.stack.layers=1", "writer.stack.dim=384", "writer.stack.dropout=0.4", "writer.dropout=0.2",
        "writer.ctc=true", "objectives.0.ctc_weight=0.5", "predict.ctc_weight=0.5", "predict.beam=10",
        "train.batch_tokens=12288", "train.schedule.lr=0.001", "train.optimizer.weight_decay=0.01", "train.ema=0.998",
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


def build_pack(data: Path, folder: Path) -> Pack:
    return Pack([data / "an4/train.npz"], [data / "an4/test_a.npz"])


if __name__ == "__main__":
    run_study(STUDY, build_pack, __doc__)
