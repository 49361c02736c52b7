#!/usr/bin/env bash
# The runs of object recognition that remain, on one GPU with 16 cores, in this order:
# `bash results/sweeps/images.sh best|paper|search|densenet|alone OUTPUT`. The same command continues where it stopped.
# CIFAR is read from NEUROCODER_DATA. A process takes 15 s to start, so each line is one group of processes; a stage has 16 in all.
set -u
output=$2
export OMP_NUM_THREADS=1
expand() { eval echo "$1" | tr ' ' ,; }
run() { name=$1 variants=$2; shift 2; python3 -m neurocoder.lab run images --device cuda --precision bf16-mixed --resume --variants "$(expand "$variants")" --output "$output/$name" "$@"; }
[ "$1" = alone ] || nvidia-cuda-mps-control -d 2>/dev/null || true

case $1 in
best) # test set: what is not in `results` yet
    run test 'cifar100-mlp-{neurocoder,original-wide}' --preset best --seeds 0-4 --jobs 3 &
    run test 'cifar100-mlp-{mixture,stored-program}' --preset best --seeds 0-4 --jobs 4 &
    run test 'cifar{10,100}-lenet-original-wide' --preset best --seeds 0-4 --jobs 3 &
    run test 'cifar{10,100}-lenet-{mixture,stored-program}' --preset best --seeds 0-4 --jobs 6 &
    ;;
paper) # validation: does LeNet gain if all dense layers are recoded, whose count is that of Table 6?
    run dense 'cifar{10,100}-lenet-{original,neurocoder,neurocoder-dense}' --preset paper --validation --seeds 100-102 --jobs 9 &
    ;;
search) # validation; in `results` are CIFAR-10's directions, with black-bordered crops and the same seeds
    run search 'cifar100-mlp-neurocoder-{middle,single,slots,sharp,plain,free,lstm32,steered}' --preset best --validation --seeds 100-101 --jobs 6 &
    run search 'cifar100-lenet-{original,original-wide,neurocoder} cifar100-lenet-neurocoder-{middle,conv,dense,single,slots,sharp,plain,free,lstm32,fast,steered}' --preset best --validation --seeds 100-101 --jobs 8 &
    ;;
densenet) # test set, 30 epochs, two side by side
    run test 'cifar{10,100}-densenet-{original,neurocoder,mixture,stored-program}' --preset best --seeds 0 --jobs 2
    ;;
alone) # epoch times, one run at a time
    run alone 'cifar10-{mlp,lenet}-{original,neurocoder,mixture,stored-program} cifar10-densenet-{original,neurocoder}' --preset best --validation --seeds 0 --epochs-mlp 3 --epochs-lenet 3 --epochs-densenet 3
    ;;
esac
wait
