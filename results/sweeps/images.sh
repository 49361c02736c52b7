#!/usr/bin/env bash
# The runs of object recognition, on one GPU with 16 cores: `bash results/sweeps/images.sh alone|validation|densenet OUTPUT`.
# CIFAR is read from NEUROCODER_DATA. The same command continues where it stopped.
set -u
output=$2
export OMP_NUM_THREADS=1
run() { python3 -m neurocoder.lab run images --device cuda --precision bf16-mixed --resume "$@"; }

case $1 in
alone) # epoch times, one run at a time
    run --preset best --seeds 0 --validation --epochs-mlp 3 --epochs-lenet 3 --epochs-densenet 2 --output "$output/alone" \
        --variants 'cifar10-*-original,cifar10-mlp-neurocoder,cifar10-lenet-neurocoder,cifar10-densenet-neurocoder'
    ;;
validation) # how far the original is from the paper's, and what the search directions give
    nvidia-cuda-mps-control -d 2>/dev/null || true
    run --preset paper --seeds 0-1 --validation --jobs 5 --output "$output/paper" --variants \
        'cifar10-mlp-original,cifar10-mlp-neurocoder,cifar10-mlp-mixture,cifar10-mlp-stored-program,cifar10-lenet-original,cifar10-lenet-neurocoder,cifar10-lenet-mixture,cifar10-lenet-stored-program' &
    run --preset best --seeds 0-1 --validation --jobs 9 --output "$output/best" --variants \
        'cifar10-mlp-original,cifar10-mlp-neurocoder*,cifar10-lenet-original,cifar10-lenet-neurocoder*' &
    wait
    ;;
densenet) # two side by side
    nvidia-cuda-mps-control -d 2>/dev/null || true
    run --preset best --seeds 0 --jobs 2 --output "$output/densenet" \
        --variants cifar10-densenet-original,cifar10-densenet-neurocoder
    ;;
esac
