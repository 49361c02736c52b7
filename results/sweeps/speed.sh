#!/usr/bin/env bash
# What only a GPU can tell, in about six minutes on an H200, with nothing beside it:
#
#     bash results/sweeps/speed.sh OUTPUT [BEFORE/src]
#
# The tests of kernels; then, from warm caches, growing layers in compiled GPT blocks, a million samples through an exact
# layer, core layers, and today's library beside the one in BEFORE/src. Everything compiles once first, side by side.
# OUTPUT gets what was printed, and the records of `neurocoder bench` (their `first_call_seconds` are of warm caches).
# Needs pytest, pytest-xdist, tyro and rich.
set -u
output=${1:?a folder} before=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." && mkdir -p "$output"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/inductor} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/triton}
tests=(tests/test_kernels.py tests/test_side_streams.py)
tests+=(tests/growing/test_{gpu,growing_streams,operators,capture}.py)

bench() { # FOLDER SKIP|- BEFORE|- CASE...: `neurocoder bench` with the caches above, which the command itself does without
    python3 -c '
import sys
from pathlib import Path
from neurocoder.lab.bench.command import Options, measure
output, skip, before, *cases = sys.argv[1:]
skip, before = [() if skip == "-" else (skip,), None if before == "-" else Path(before)]
options = Options(device="cuda", cases=tuple(cases), skip=skip, against=before, output=Path(output))
sys.exit(not measure(options, print))
' "$@"
}
growing() { python3 "$here/growing_compiled.py" --modes "$@"; }
timed() { # NAME COMMAND...: alone, its output into OUTPUT/NAME.txt
    local name=$1 begun=$SECONDS
    "${@:2}" > "$output/$name.txt" 2>&1
    echo "$name: status $?, $((SECONDS - begun)) s" | tee -a "$output/times.txt"
    grep -h '^|\|passed\|failed\|samples of\|now / before' "$output/$name.txt"
}

timed tests python3 -m pytest -p no:cacheprovider -p no:benchmark -q -n 8 -m 'not long' "${tests[@]}"
warm=$(mktemp -d)
for mode in default reduce-overhead; do
    for train in "" --train; do growing "$mode" $train --repeats 1 > "$warm/growing$mode$train" 2>&1 & done
done
bench "$warm/core" - - core-1024x1024-compiled gpt gpt-reduced > "$warm/log" 2>&1 &
wait
timed growing growing eager default reduce-overhead
timed growing-train growing eager default reduce-overhead --train
timed million python3 -m pytest -p no:cacheprovider -p no:benchmark -q -s -m long tests/exact/test_exact_scale.py -k million
timed core bench "$output/bench" - - core-1024x1024 core-1024x1024-compiled gpt gpt-reduced
[ -z "$before" ] || timed pairs bench "$output/pairs" compiled "$before" 784x10 1024x1024 4096x4096
