#!/usr/bin/env bash
# The runs behind the tables of continual learning, on one GPU with 16 cores:
# `bash results/sweeps/split.sh validation|mnist|hsu|lstm|cifar|rates|growing|sizes OUTPUT`. The same command continues where it stopped.
# CIFAR is read from NEUROCODER_DATA, the ResNet's weights from NEUROCODER_BACKBONE.
set -u
output=$2
export OMP_NUM_THREADS=1
nvidia-cuda-mps-control -d 2>/dev/null || true
expand() { eval echo "$1" | tr ' ' ,; }
run() { name=$1 variants=$2; shift 2; python3 -m neurocoder.lab run split --resume --variants "$(expand "$variants")" --output "$output/$name" "$@"; }
plain='{adam,adagrad}' penalties='{l2,si,ewc,online-ewc,mas}' methods='{adam,adagrad,l2,si,ewc,online-ewc}'

case $1 in
validation) # factors on the penalties' coefficients, on held-out training data; three seeds that no table uses
    for strength in 0.1 1 3 10 30 100 300 1000 3000 10000; do
        run strength-$strength "mnist-{task,domain}-$penalties-{mlp,neurocoder}" --preset best --validation --seeds 100-102 --strength $strength --jobs 2 &
    done
    ;;
mnist) # Tables 3 and 4
    for preset in paper best; do
        run test "mnist-{domain,task}-$methods-{mlp,neurocoder,stored-program}" --preset $preset --jobs 8 &
    done
    ;;
hsu) # the rows of Hsu et al.
    run test "mnist-{task,domain,class}-{$methods,mas,lwf,rehearsal,offline}-mlp-400" --preset paper --jobs 14
    ;;
lstm) # with an LSTM of 21 the paper's 348K parameters
    run lstm-21 "mnist-{task,domain}-$plain-neurocoder" --preset paper --hidden 21 --jobs 8
    ;;
cifar) # Figure 8
    for preset in paper best paper-224 best-224; do
        run test "cifar{10,100}-task-{adam,si}-{mlp,neurocoder,neurocoder-plain}" --preset $preset --jobs 4 &
    done
    ;;
rates) # where the paper's baselines come from
    run rate-10 "cifar10-task-{adam,si}-{mlp,neurocoder}" --preset paper --rate 10 --jobs 8 &
    run rate-10-long "cifar10-task-{adam,si}-mlp" --preset paper --rate 10 --epochs 20 --seeds 0-4 --jobs 8 &
    ;;
growing)
    run test "mnist-{domain,class,task}-adagrad-{growing,growing-small}" --preset paper --jobs 4 &
    run test "cifar{10,100}-{domain,class,task}-adagrad-{growing,mlp}" --preset paper-224 --jobs 4 &
    run test "mnist-{domain,class}-adagrad-{growing,mlp}" --preset stream --jobs 4 &
    run test "permuted-domain-adagrad-{growing,mlp}" --preset paper --seeds 0-2 --jobs 3 &
    ;;
sizes) # growing layers: accuracy against memory, on held-out training data
    try() { name=$1 variants=$2; shift 2; run "$name" "$variants" --validation --seeds 100-101 --jobs 1 "$@" & }
    for slots in 100 300 1000 3000; do
        for rank in 1 2 4 8; do
            try slots-$slots-rank-$rank "mnist-{domain,class}-adagrad-growing" --preset paper --slots $slots --rank $rank --writes 1
        done
        wait
    done
    for key in 36 64 256; do
        try key-$key "mnist-{domain,class}-adagrad-growing" --preset paper --slots 2000 --writes 1 --key-dim $key
    done
    for writes in 2 4 8; do
        try writes-$writes "mnist-{domain,class}-adagrad-growing" --preset paper --slots 4000 --writes $writes
        try features-$writes "cifar10-{domain,class,task}-adagrad-growing" --preset paper-224 --slots 8000 --writes $writes
    done
    for similarity in 0.8 0.85 0.88; do
        try small-$similarity "mnist-{domain,class}-adagrad-growing-small" --preset paper --max-similarity $similarity
        try pixels-$similarity permuted-domain-adagrad-growing --preset paper --max-similarity $similarity
    done
    ;;
esac
wait
