#!/usr/bin/env bash
# One whole GPU run: the fast layer tests on this torch, then every translation result, or the training speed.
#   benchmarks/gpu.sh translation DATA OUT      DATA: folder of the data packs
#   benchmarks/gpu.sh speed SUITE OUT           SUITE: folder with gpu_train.py
#   benchmarks/gpu.sh decoding SUITE OUT        SUITE: folder with gpu_generate.py
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
decoding)
    timeout 240 python3 -m pytest -q -o addopts="" -p no:cacheprovider tests/predict/test_graphs_cuda.py
    timeout 240 python3 benchmarks/gpu_decoding.py --suite "$from" --out "$out"
    timeout 90 python3 benchmarks/gpu_decoding.py --suite "$from" --profile > "$out/decoding_profile.txt" 2>&1
    ;;
esac
