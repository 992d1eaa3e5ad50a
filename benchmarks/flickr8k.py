"""Image captioning from scratch: show-attend-tell on Flickr8k, 6,000 pictures of 128 pixels, 5 captions each.

    python benchmarks/flickr8k.py --data FOLDER [--minutes 5] [--seeds 1] [--run FOLDER] [--out FOLDER] [KEY=VALUE ...]
    python benchmarks/flickr8k.py --tiny

FOLDER holds `flickr8k/{train,dev,test_a}_images.tar.gz` and `.jsonl.gz`. No weights come from elsewhere. The weights
that are scored are those with the best BLEU on dev. All five captions of a picture are references, without case. Seven
minutes in all on an H200 by itself.
"""

from pathlib import Path

from packs import Pack, Study, run_study

STUDY = Study(
    name="flickr8k",
    recipe="show-attend-tell",
    settings=(
        "tokenizer.size=4000", "reader.channels=[64, 128, 256, 512]", "reader.depth=2", "reader.dropout=0.3",
        "reader.augment={flip=0.5, crop=16, num_ops=1, magnitude=0.5}",
        "writer.stack.dim=512", "writer.stack.dropout=0.5", "writer.dropout=0.4", "train.batch_tokens=12288",
        "train.schedule.lr=0.001", "train.optimizer.weight_decay=0.05", "train.ema=0.999",
        "train.valid_predictions=1000",
        "predict.beam=5", "predict.length_penalty=0.8",
    ),
    minutes=5,
    scores=("bleu-1", "bleu-2", "bleu-3", "bleu-4", "cider"),
    lowercase=True,
)  # fmt: skip


def build_pack(data: Path, folder: Path) -> Pack:
    def files(split: str) -> list[Path]:
        return [data / "flickr8k" / f"{split}_images.tar.gz", data / "flickr8k" / f"{split}.jsonl.gz"]

    return Pack(files("train"), files("test_a"), files("dev"))


if __name__ == "__main__":
    run_study(STUDY, build_pack, __doc__)
