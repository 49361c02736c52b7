#!/usr/bin/env bash
# The later runs of object recognition, on one GPU with 16 cores:
# `bash results/sweeps/images.sh best|paper|protocol|rates|small|search|densenet|alone OUTPUT`. The same command continues where it stopped.
# CIFAR is read from NEUROCODER_DATA. A process takes 15 s to start, so each line is one group of processes.
set -u
output=$2
export OMP_NUM_THREADS=1
expand() { eval echo "$1" | tr ' ' ,; }
run() { name=$1 variants=$2; shift 2; python3 -m neurocoder.lab run images --device cuda --precision bf16-mixed --resume --variants "$(expand "$variants")" --output "$output/$name" "$@"; }
[ "$1" = alone ] || nvidia-cuda-mps-control -d 2>/dev/null || true

case $1 in
best) # test set: the last seeds of stored programs
    run test 'cifar100-{mlp,lenet}-stored-program' --preset best --seeds 3-4 --jobs 4
    ;;
paper) # validation: where could LeNet's gain come from? An LSTM of 128, or all dense layers, fit the count of Table 6
    run dense 'cifar{10,100}-lenet-{original,neurocoder} cifar{10,100}-lenet-neurocoder-{dense,plain,sharp,free,steered}' --preset paper --validation --seeds 100-102 --jobs 7 &
    for hidden in 32 128; do
        run lstm-$hidden 'cifar{10,100}-lenet-neurocoder' --preset paper --validation --seeds 100-102 --hidden $hidden --jobs 2 &
    done
    ;;
protocol) # validation: LeNet's gain at other rates and augmentations, where the curve of the original passes the paper's
    for kind in none flip reflect; do
        for rate in 3e-4 1e-3 3e-3; do
            run protocol-$kind-$rate 'cifar{10,100}-lenet-{original,neurocoder}' --preset paper --validation --seeds 100-102 --epochs-lenet 30 --augmentation-lenet $kind --learning-rate $rate --jobs 2 &
        done
    done
    ;;
rates) # validation: LeNet between the rate at which crops train it well and the one at which they no longer do
    for rate in 1.25e-3 1.5e-3 2e-3; do
        run rates-$rate 'cifar{10,100}-lenet-{original,neurocoder}' --preset paper --validation --seeds 100-104 --epochs-lenet 30 --augmentation-lenet reflect --learning-rate $rate --jobs 5 &
    done
    ;;
small) # validation: LeNet at small rates, to the best epoch, beside one program for all images and a wider original
    for setting in 1e-5:300 3e-5:200 1e-4:100 3e-4:60; do
        for dataset in cifar10 cifar100; do
            run small-${setting%:*} "$dataset-lenet-{original,original-wide,neurocoder,neurocoder-constant}" --preset paper --validation --seeds 100-102 --epochs-lenet ${setting#*:} --learning-rate ${setting%:*} --jobs 2 &
        done
    done
    ;;
search) # validation; CIFAR-10 was searched before, with black-bordered crops
    run search 'cifar100-mlp-neurocoder-{middle,single,slots,sharp,plain,free,lstm32,steered}' --preset best --validation --seeds 100-101 --jobs 6 &
    run search 'cifar100-lenet-{original,original-wide,neurocoder} cifar100-lenet-neurocoder-{middle,conv,dense,single,slots,sharp,plain,free,lstm32,fast,steered}' --preset best --validation --seeds 100-101 --jobs 8 &
    ;;
densenet) # test set, 30 epochs, three seeds; about 3 minutes of an H200 a run, six side by side
    run test 'cifar{10,100}-densenet-{original,neurocoder,mixture,stored-program}' --preset best --seeds 0-2 --jobs 6
    ;;
alone) # epoch times, one run at a time
    run alone 'cifar10-{mlp,lenet}-{original,neurocoder,mixture,stored-program} cifar10-densenet-{original,neurocoder}' --preset best --validation --seeds 0 --epochs-mlp 3 --epochs-lenet 3 --epochs-densenet 3
    ;;
esac
wait
