#!/usr/bin/env bash
# One whole GPU run, by what it measures. Results are written as they come.
#   benchmarks/gpu.sh translation DATA OUT      DATA: folder of the data packs
#   benchmarks/gpu.sh speed SUITE OUT           SUITE: folder with gpu_train.py
#   benchmarks/gpu.sh decoding SUITE OUT        SUITE: folder with gpu_generate.py
#   benchmarks/gpu.sh systems DATA OUT          BLEU of the lectures' systems; a student of all words at once, its speed
#   benchmarks/gpu.sh claims DATA OUT           second stage of GNMT, unknown words, the bottleneck, SCAN
# Where several trainings share the device, NVIDIA's MPS is started first: without it they would wait for each other.
set -uo pipefail
cd "$(dirname "$0")/.."
what=$1 from=$2 out=$3
work=${WORK:-runs/benchmark}
m=$from/multi30k
valid="--valid $m/val.en.gz $m/val.de.gz"
pairs="--data $m/train.en.gz $m/train.de.gz $valid"
test="$m/test_2016_flickr.en.gz $m/test_2016_flickr.de.gz"

share() {
    mkdir -p "$out" "$work"
    export OMP_NUM_THREADS=1
    nvidia-cuda-mps-control -d 2>/dev/null && sleep 1
}

run() { # NAME RECIPE [arguments]: trains once, keeps what it says
    local name=$1
    shift
    [ -f "$work/$name/model.safetensors" ] || python3 -m saccade train "$@" --run "$work/$name" >"$work/$name.log" 2>&1
}

student() { # a teacher, its translations of the training texts, a student of them
    run teacher multi30k $pairs
    gzip -dc "$m/train.en.gz" >"$work/train.en"
    python3 -m saccade predict "$work/teacher" --input "$work/train.en" --output "$work/distilled.de" beam=5
    run nat nat --data "$work/train.en" "$work/distilled.de" $valid init="$work/teacher" train.steps=6000
}

case $what in
systems)
    share
    student &
    python3 benchmarks/translation.py --data "$from" --jobs bytenet,deep-att,gnmt,moe --name systems --together 4 \
        --work "$work" --out "$out" --set train.steps=2500 &
    wait
    python3 benchmarks/expert_loads.py "$work/moe-1" --data "$m/val.en.gz" "$m/val.de.gz" --out "$out"
    python3 benchmarks/nat_speed.py "$work/nat" "$work/teacher" --data $test --device cuda --out "$out"
    ;;
claims)
    share
    (run gnmt gnmt $pairs train.steps=2000 && python3 benchmarks/reward.py --data "$m" --base "$work/gnmt" --steps 200 \
        --out "$out") &
    (run words deep-att $pairs tokenizer.kind=words tokenizer.size=5000 tokenizer.shared=false writer.tie=output \
        train.steps=2000
    for replace in true false; do
        python3 -m saccade evaluate "$work/words" --data $test --metrics bleu --json replace_unknown=$replace \
            >"$out/unknown_$replace.json"
    done) &
    for attention in none additive; do
        python3 benchmarks/bottleneck.py --attention $attention --steps 3000 --out "$out/bottleneck-$attention" &
    done
    python3 benchmarks/scan.py --data "$from" --work "$work/scan" --out "$out" --together 4 &
    wait
    ;;
translation)
    timeout 60 python3 -m pytest -q -o addopts="" -p no:cacheprovider tests/layers/test_kernels.py tests/train/test_cuda.py || exit 1
    python3 benchmarks/translation.py --data "$from" --out "$out" --work "$work" --together 3
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
