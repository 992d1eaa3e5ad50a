#!/usr/bin/env bash
# One whole GPU run, by what it measures. Results are written as they come.
#   benchmarks/gpu.sh speed SUITE OUT           SUITE: folder with gpu_train.py
#   benchmarks/gpu.sh decoding SUITE OUT        SUITE: folder with gpu_generate.py
#   benchmarks/gpu.sh language DATA OUT         DATA: folder of the data sets; plan against reality; an encoder and SST-2
#   benchmarks/gpu.sh books DATA OUT            GPT-2 on books, and Hugging Face's beside it: about 25 minutes
#   benchmarks/gpu.sh systems DATA OUT          mechanisms of the lectures' systems, on and off; reversing
# What `saccade reproduce` trains and scores is measured by benchmarks/gpu_seeds.sh.
# Where several trainings share the device, NVIDIA's MPS is started first: without it they would wait for each other.
set -uo pipefail
cd "$(dirname "$0")/.."
what=$1 from=$2 out=$3
work=${WORK:-runs/benchmark}
m=$from/multi30k
valid="--valid $m/val.en.gz $m/val.de.gz"
pairs="--data $m/train.en.gz $m/train.de.gz $valid"
test="$m/test_2016_flickr.en.gz $m/test_2016_flickr.de.gz"

share() { # JOB ...: calls of the functions below, TOGETHER of them at a time on one device
    mkdir -p "$out" "$work"
    export OMP_NUM_THREADS=1 from out work m valid pairs test
    export -f run scored system gnmt moe words reversing
    nvidia-cuda-mps-control -d 2>/dev/null && sleep 1
    printf '%s\n' "$@" | xargs -P "${TOGETHER:-6}" -I{} bash -c '{}; echo "$(date +%T) done: {}"'
}

run() { # NAME RECIPE [arguments]: trains, keeps what it says
    local name=$1
    shift
    python3 -m saccade train "$@" --run "$work/$name" >"$work/$name.log" 2>&1
}

scored() { # RUN NAME [settings]: BLEU and GLEU on the test
    python3 -m saccade evaluate "$work/$1" --data $test --metrics bleu,gleu --json "${@:3}" >"$out/$2.json" 2>>"$work/$1.log"
}

system() { run $1 $1 $pairs && scored $1 $1; }

gnmt() { # and its second stage
    system gnmt
    python3 benchmarks/reward.py --data "$m" --base "$work/gnmt" --steps 400 --out "$out" >"$work/reward.log" 2>&1
}

moe() { # and how much each expert has to do
    system moe
    python3 benchmarks/expert_loads.py "$work/moe" --data "$m/val.en.gz" "$m/val.de.gz" --out "$out" >"$work/loads.log" 2>&1
}

words() { # a vocabulary of 5,000 whole words, with and without the others replaced by what was attended to
    run words deep-att $pairs tokenizer.kind=words tokenizer.size=5000 tokenizer.shared=false writer.tie=output
    scored words words-replaced replace_unknown=true
    scored words words-unknown replace_unknown=false
}

reversing() { # ATTENTION
    python3 benchmarks/bottleneck.py --attention $1 --steps 4000 --out "$out/bottleneck-$1" >"$work/bottleneck-$1.log" 2>&1
}

case $what in
systems)
    share gnmt "reversing additive" moe words "reversing none"
    ;;
language)
    cp benchmarks/results/plan_predictions.json "$out" && python3 benchmarks/plan_check.py measure --out "$out"
    python3 benchmarks/bert_sst2.py --data "$from" --minutes 6 --seeds 1 --out "$out"
    ;;
books)
    python3 benchmarks/books.py --data "$from" --out "$out"
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
