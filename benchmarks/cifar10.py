"""Small photographs of ten classes: vit on CIFAR-10 as JPEG, 50,000 pictures of 32 x 32 pixels, from fresh weights.

    python benchmarks/cifar10.py --data FOLDER [--minutes 6] [--seeds 1] [--run FOLDER] [--out FOLDER] [KEY=VALUE ...]
    python benchmarks/cifar10.py --tiny

FOLDER holds `cifar10/{train,test_a}.tar.gz`, with a folder for each class. No picture is held out: the last weights, a
moving average, are scored once. Patches come from three convolutions (Xiao et al. 2021), and the class from the mean of
all 64 states, which is a whole tile for a GPU's attention. A small model and small batches: what counts within minutes
is the number of updates. Seven minutes in all on an H200 by itself.
"""

from pathlib import Path

from packs import Pack, Study, run_study

STUDY = Study(
    name="cifar10",
    recipe="vit",
    settings=(
        "reader.stem=[64, 128, 256]", "reader.class_token=false", "writer.pooling=mean",
        "reader.stack.layers=7", "reader.stack.dim=256", "reader.stack.heads=4", "reader.stack.ff=512",
        "reader.stack.drop_path=0.1", "reader.augment={flip=0.5, crop=4, num_ops=2, magnitude=0.5}",
        "objectives.0.label_smoothing=0.1", "objectives.0.mixup=0.4", "objectives.0.cutmix=1.0",
        "train.batch_tokens=16384", "train.schedule.lr=0.0008", "train.optimizer.weight_decay=0.05", "train.ema=0.999",
        "train.precision=bf16", "train.compile=true", "train.report_every=500",
    ),
    minutes=6.0,
    scores=("accuracy", "top-5"),
    warmup=0.05,
)  # fmt: skip


def build_pack(data: Path, folder: Path) -> Pack:
    return Pack(*([data / "cifar10" / f"{split}.tar.gz"] for split in ("train", "test_a")))


if __name__ == "__main__":
    run_study(STUDY, build_pack, __doc__)
