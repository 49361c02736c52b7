#!/usr/bin/env bash
# The runs of Atari, on one GPU with 16 cores: `bash results/sweeps/atari.sh check|speed|train OUTPUT`.
# The same command continues where it stopped.
set -u
output=$2
export OMP_NUM_THREADS=1
run() { python3 -m neurocoder.lab run atari --device cuda --resume "$@"; }
speed() { run --preset best --episodes 2 --frames 2000 --log-every 20480 --output "$output/speed" "$@"; }

case $1 in
check) # graphs against eager steps: the same start must give nearly the same curve
    for loop in plain graph; do
        run --preset quick --variants cartpole-plain,cartpole-neurocoder --loop $loop --steps 30000 --output "$output/$loop" &
    done
    wait
    ;;
speed) # one process after the other; a run begins by making its environments, which is not counted
    python3 "$(dirname "$0")/atari_learner.py" --heads plain neurocoder
    for seed in 0 1; do
        for head in plain neurocoder; do speed --seeds $seed --variants seaquest-$head --steps 163840; done
    done
    ;;
train) # eight at a time, which fill the cores with emulators: 25 minutes for 30M steps, even beside other training
    nvidia-cuda-mps-control -d 2>/dev/null || true
    mkdir -p "$output" && cd "$output" || exit 1
    train() { run --preset best --jobs 8 --cores 3 --output . --save-agents agents "$@"; }
    train --seeds 0 --variants 'seaquest-*,mspacman-*'
    train --seeds 0 --variants frostbite-plain,frostbite-neurocoder
    train --seeds 1-2 --variants seaquest-plain,seaquest-neurocoder
    train --seeds 0 --variants montezuma-plain,montezuma-neurocoder --steps 2000000
    ;;
esac
