#!/usr/bin/env bash
# The runs behind the tables of Split MNIST, on one GPU with 16 cores: `bash results/sweeps/split.sh validation|test OUTPUT`.
# Four commands at a time, four processes each, under MPS. The same command continues where it stopped.
set -u
output=$2
export OMP_NUM_THREADS=1
nvidia-cuda-mps-control -d 2>/dev/null || true
neurocoder() { python3 -m neurocoder.lab "$@"; }

if [ "$1" = validation ]; then
    # Factors on the penalties' coefficients, for each model, on held-out training data; three seeds that no table uses.
    models='{mlp,neurocoder}'
    for strength in 0.1 1 10 100; do
        neurocoder run split --preset best --validation --seeds 100-102 --strength $strength --jobs 4 --resume \
            --variants "$(eval echo "mnist-{task,domain}-{l2,si,ewc,online-ewc,mas}-$models" | tr ' ' ,)" \
            --output "$output/strength-$strength" &
    done
else
    methods='{adam,adagrad,l2,si,ewc,online-ewc}'
    for preset in paper best; do
        for scenario in task domain; do
            neurocoder run split --preset $preset --jobs 4 --resume \
                --variants "$(eval echo "mnist-$scenario-$methods-{mlp,neurocoder,stored-program,neurocoder-plain}" | tr ' ' ,)" \
                --output "$output" &
        done
    done
fi
wait
