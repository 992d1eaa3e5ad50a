#!/usr/bin/env bash
# Choose settings for results that miss their aim, on held-out data: one seed of each candidate within some minutes.
#   benchmarks/gpu_aims.sh DATA OUT MINUTES [RESULT ...]     DATA: folder of the data sets; default: all results below
# A candidate is a result and the settings by which it differs from the record; the first of each result differs by
# none. What is finished is kept, and a second start goes on. The test of no result is read. The last lines are the
# held-out scores; write the better settings into saccade/reproduce/recorded, then `saccade reproduce NAME` scores the
# test, once for each seed. TOGETHER=3 trains three at a time; SACCADE="saccade" can be changed.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 3 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
data=$1 out=$2 end=$(($(date +%s) + ${3%.*} * 60))
shift 3
only=" $* "
saccade=${SACCADE:-python3 -m saccade}
mkdir -p "$out" || exit 2
train_candidate() { # RESULT [SETTING ...]
    case $only in "  " | *" $1 "*) ;; *) return ;; esac
    local left=$((end - $(date +%s)))
    [ "$left" -gt 60 ] || { echo "$*: no time left"; return; }
    timeout -s INT "$left" $saccade reproduce "$1" --heldout --seeds 1 --data-folder "$data" --out "$out" "${@:2}" \
        >>"$out/$1.log" 2>&1
    echo "$(date +%T) $*: exit code $?"
}
try() {
    while [ "$(jobs -rp | wc -l)" -ge "${TOGETHER:-1}" ]; do wait -n; done
    train_candidate "$@" &
}

# an4: 51 epochs of 0.7 hours; shorter trainings had been far worse. Longer, with more masks and a slower average.
try an4
try an4 train.steps=3000 train.schedule.warmup_steps=240 train.save_every=3000 train.ema=0.999
try an4 train.steps=3000 train.schedule.warmup_steps=240 train.save_every=3000 train.ema=0.999 \
    'reader.augment={time_masks=4, time_mask_ratio=0.05, freq_masks=2, freq_mask_ratio=0.25, noise=0.2, speed=0.15}'

# cifar10: four times as many cells (CCT of Hassani et al. 2021 gains most by these, from memory), without and with random
# erasing, which made a training of 900 steps worse (docs/log.md) and is for long ones.
try cifar10
try cifar10 reader.patch_size=2 'reader.stem=[64, 256]' train.batch_tokens=65536
try cifar10 reader.patch_size=2 'reader.stem=[64, 256]' train.batch_tokens=65536 reader.augment.erase=0.25

# multi30k: subwords sampled anew in each epoch (Provilkov et al. 2020), for which it trains longer; smaller steps at
# the end by a longer average.
try multi30k-en-de
try multi30k-en-de tokenizer.dropout=0.1 train.steps=8000
try multi30k-en-de train.steps=8000 train.ema=0.999 objectives.0.alpha=7

# flickr8k: fine-tuned by the reward of its captions; longer with stronger augmentation.
try flickr8k
try flickr8k-reward
try flickr8k train.steps=12000 train.schedule.warmup_steps=960 train.save_every=12000 \
    'reader.augment={flip=0.5, crop=16, num_ops=2, magnitude=0.5, erase=0.25}'

# sst2: twice the pretraining; settings are chosen on training sentences, dev stays unseen.
try sst2-longer

wait
find "$out" -name 'seed-1-heldout*.json' | sort | xargs -r python3 -c '
import json, sys
for name in sys.argv[1:]:
    with open(name) as file:
        found = json.load(file)
    scores = ", ".join(f"{metric} {value:.2f}" for metric, value in found["scores"].items()) or found["diverged"]
    print(name.split("/")[-2], *found["settings"]["overrides"], "|", scores, "|", found["minutes"], "min")'
exit 0
