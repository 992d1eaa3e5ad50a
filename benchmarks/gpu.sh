#!/usr/bin/env bash
# One whole GPU run: the fast layer tests on this torch, then every translation result, or the training speed.
#   benchmarks/gpu.sh translation DATA OUT      DATA: folder of the data packs
#   benchmarks/gpu.sh speed SUITE OUT           SUITE: folder with gpu_train.py
set -uo pipefail
cd "$(dirname "$0")/.."
what=$1 from=$2 out=$3
case $what in
translation)
    timeout 60 python3 -m pytest -q -o addopts="" -p no:cacheprovider tests/layers/test_kernels.py tests/train/test_cuda.py || exit 1
    python3 benchmarks/translation.py --data "$from" --out "$out" --work "${WORK:-runs/benchmark}" --together 3
    ;;
speed)
    python3 benchmarks/train_speed.py --suite "$from" --out "$out"
    ;;
esac
