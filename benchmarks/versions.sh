#!/usr/bin/env bash
# This tree beside another commit on one GPU, in turn: the four cases of a suite that takes --plugin (gpu_train.py, gpu_generate.py).
#   benchmarks/versions.sh SUITE OUT [COMMIT]     three rounds; OUT/CASE-TREE-ROUND.json has the milliseconds of each case
set -euo pipefail
cd "$(dirname "$0")/.."
suite=$1 out=$2 commit=${3:-088a6fd}
here=$PWD old=$(mktemp -d)
trap 'git worktree remove --force "$old"' EXIT
git worktree add --quiet --detach "$old" "$commit"
mkdir -p "$out"
for round in 1 2 3; do
    for case in "gpu_train.py gpt contenders" "gpu_train.py seq2seq contenders" \
        "gpu_generate.py gpt gpu_contenders_decode" "gpu_generate.py translate gpu_contenders_decode"; do
        read -r script part plugin <<<"$case"
        for tree in old new; do
            folder=$here
            [ $tree = new ] || folder=$old
            PYTHONPATH=$folder python3 "$suite/$script" --part "$part" --only saccade \
                --plugin "$folder/benchmarks/$plugin.py" --out "$out/${script%.py}-$part-$tree-$round.json"
        done
    done
done
