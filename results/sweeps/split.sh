#!/usr/bin/env bash
# The runs behind the tables of continual learning, on one GPU with 16 cores:
# `bash results/sweeps/split.sh validation|mnist|hsu|lstm|cifar|growing|sizes OUTPUT`. The same command continues where it stopped.
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
growing)
    run test "mnist-{domain,class,task}-adagrad-{growing,growing-small}" --preset paper --jobs 4 &
    run test "cifar{10,100}-{domain,class,task}-adagrad-{growing,mlp}" --preset paper-224 --jobs 4 &
    run test "mnist-{domain,class}-adagrad-{growing,mlp}" --preset stream --jobs 4 &
    run test "permuted-domain-adagrad-{growing,mlp}" --preset paper --seeds 0-2 --jobs 3 &
    ;;
sizes) # growing layers: accuracy against memory, on held-out training data
    for slots in 100 300 1000 3000; do
        for rank in 1 2 4 8; do
            run slots-$slots-rank-$rank "mnist-{domain,class}-adagrad-growing" --preset paper --validation --seeds 100-101 --slots $slots --rank $rank --jobs 1 &
        done
        wait
    done
    for key in 36 64 256; do
        run key-$key "mnist-{domain,class}-adagrad-growing" --preset paper --validation --seeds 100-101 --key-dim $key --jobs 1 &
    done
    for writes in 2 4; do
        run writes-$writes "mnist-{domain,class}-adagrad-growing" --preset paper --validation --seeds 100-101 --slots $((2000 * writes)) --writes $writes --jobs 1 &
    done
    ;;
esac
wait
