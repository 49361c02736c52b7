#!/usr/bin/env bash
# Where the scale of an output layer decides: a plain layer that is still far from its own best, Neurocoder, and
# Neurocoder with one program for all inputs: `bash results/sweeps/scale.sh polynomials|scales|digits|images OUTPUT`, on a
# GPU with 16 cores. The same command continues where it stopped. CIFAR is read from NEUROCODER_DATA.
# What is missing, Atari with rewards as they are too: `queue.sh`. `python results/sweeps/scale.py` makes page and figure.
set -u
output=$2
export OMP_NUM_THREADS=1
nvidia-cuda-mps-control -d 2>/dev/null || true
expand() { eval echo "$1" | tr ' ' ,; }
run() { experiment=$1 variants=$2; shift 2; python3 -m neurocoder.lab run "$experiment" --resume --variants "$(expand "$variants")" "$@"; }

case $1 in
polynomials) # Figures 5 and 6 with y times 1,000; the controls on clean sequences
    run polynomials 'gru,hyper,single-3,multi,single-2,gru-16,gru-8' --preset large --output "$output/test" --jobs 7 &
    run polynomials '{single-3,multi}-constant gru-{scaled,exp,fast}' --preset large --output "$output/test" --jobs 5 &
    wait
    run polynomials '{gru,hyper,single-2,single-3,multi}-{noise,doubled}' --preset large --output "$output/test" --jobs 12
    ;;
scales) # R^2 at 2,000 iterations when y is times 1, 10, 100, 1,000
    for scale in 1 10 100 1000; do
        run polynomials '{gru,hyper,single-3,multi}' --preset large --scale $scale --iterations 2000 --output "$output/scale-$scale" --jobs 4 &
    done
    ;;
digits) # held-out training images, Adam at a constant rate, five passes
    for rate in 1e-5 3e-5 1e-4 3e-4 1e-3 3e-3 1e-2; do
        run digits 'linear,mlp,J5,P10-H4-J5,J5-constant,P10-H4-J5-constant' --preset small --learning-rate $rate --output "$output/digits-$rate" --jobs 2 &
    done
    ;;
images) # held-out training images, LeNet, to the best epoch
    for setting in 1e-5:150 3e-5:100 1e-4:60 3e-4:40 1e-3:30; do
        run images 'cifar100-lenet-{original,original-wide,neurocoder,neurocoder-constant}' --preset paper --validation --seeds 100-102 --precision bf16-mixed --epochs-lenet "${setting#*:}" --learning-rate "${setting%:*}" --output "$output/images-${setting%:*}" --jobs 3 &
    done
    ;;
esac
wait
