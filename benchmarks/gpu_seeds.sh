#!/usr/bin/env bash
# Fill in three seeds of recorded results within some minutes; what is finished is kept, and a second start goes on.
#   benchmarks/gpu_seeds.sh DATA OUT MINUTES [NAME ...]     DATA: folder of the data sets; default: all names without three seeds
# First the first seed of all names, then the second; seeds that are recorded already are not trained again. TOGETHER=3 trains three at a time on one device, with NVIDIA's MPS;
# their minutes are then upper bounds. OUT/NAME has runs, seed-N.json and the card; copy OUT/NAME/card.json to
# benchmarks/results/NAME.json to publish it. SEEDS=3 and SACCADE="saccade" can be changed.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 3 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
data=$1 out=$2 minutes=$3
shift 3
export saccade=${SACCADE:-python3 -m saccade} data out
export end=$(($(date +%s) + ${minutes%.*} * 60))
mkdir -p "$out" || exit 2
if [ $# -eq 0 ]; then
    mapfile -t names < <($saccade reproduce --list --json | python3 -c '
import json, sys
print(*(found["name"] for found in json.load(sys.stdin) if len((found["recorded"] or {"values": ()})["values"]) < 3), sep="\n")')
    set -- "${names[@]}"
fi
one() { # NAME SEEDS: trains what is missing; the budget is the time that is left
    local left=$(((end - $(date +%s)) / 60))
    [ "$left" -gt 0 ] || { echo "$1, seed $2: no time left"; return; }
    $saccade reproduce "$1" --seeds "$2" --only-new --data-folder "$data" --out "$out" --budget "$left" >>"$out/$1.log" 2>&1
    local code=$?
    echo "$(date +%T) $1, seed $2: exit code $code"
}
export -f one
if [ "${TOGETHER:-1}" -gt 1 ]; then
    export OMP_NUM_THREADS=1
    nvidia-cuda-mps-control -d 2>/dev/null && sleep 1
fi
for seed in $(seq "${SEEDS:-3}"); do
    printf '%s\n' "$@" | xargs -P "${TOGETHER:-1}" -I{} bash -c "one {} $seed"
done
for name in "$@"; do
    [ -f "$out/$name/card.md" ] && head -1 "$out/$name/card.md"
done
exit 0
