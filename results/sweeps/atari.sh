#!/usr/bin/env bash
# The runs of Atari, on one GPU with 16 cores: `bash results/sweeps/atari.sh check|speed|train OUTPUT`.
# The same command continues where it stopped.
set -u
output=$2
export OMP_NUM_THREADS=1
run() { python3 -m neurocoder.lab run atari --device cuda --resume "$@"; }
speed() { name=$1; shift; run --preset best --seeds 0 --episodes 2 --frames 2000 --log-every 20480 --cores 16 --output "$output/$name" "$@"; }

case $1 in
check) # graphs against eager steps: the same start must give nearly the same curve
    for loop in plain graph; do
        run --preset quick --variants cartpole-plain,cartpole-neurocoder --loop $loop --steps 30000 --output "$output/$loop" &
    done
    wait
    ;;
speed) # one job at a time
    speed heads --variants seaquest-plain,seaquest-neurocoder,seaquest-hyper --steps 204800
    speed groups1 --variants seaquest-plain --steps 163840 --groups 1
    speed envs512 --variants seaquest-plain,seaquest-neurocoder --steps 245760 --environments 512
    speed large --variants seaquest-plain,seaquest-neurocoder --steps 163840 --body large
    speed bf16 --variants seaquest-plain --steps 163840 --precision bf16-mixed
    ;;
train) # two jobs fill the cores with emulators; the first half minute of a run makes its 256 environments
    nvidia-cuda-mps-control -d 2>/dev/null || true
    train() { run --preset best --jobs 2 --cores 16 --output "$output" --keep "$output/agents" "$@"; }
    train --seeds 0 --variants 'seaquest-*,mspacman-*' --steps 5000000
    train --seeds 1-2 --variants seaquest-plain,seaquest-neurocoder --steps 5000000
    train --seeds 0 --variants frostbite-plain,frostbite-neurocoder --steps 5000000
    train --seeds 0 --variants montezuma-plain,montezuma-neurocoder --steps 2000000
    ;;
esac
