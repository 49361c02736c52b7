#!/usr/bin/env bash
# All runs that the verdicts in docs/results/README.md still wait for, on one H200 with 16 cores:
#
#     bash results/sweeps/queue.sh run OUTPUT       # start, or continue where it stopped; about three hours
#     bash results/sweeps/queue.sh status OUTPUT    # how many runs of each group are to do
#     bash results/sweeps/queue.sh stop OUTPUT      # save what runs now, and end
#     bash results/sweeps/queue.sh pack OUTPUT      # finished records into results/, then `neurocoder report`
#     bash results/sweeps/queue.sh smoke OUTPUT     # every group once in a minute, tiny, on a CPU; names that need data are only checked
#
# CIFAR is read from NEUROCODER_DATA, the ResNet's weights from NEUROCODER_BACKBONE. Two lanes run side by side, each in
# the order of the groups: `emulators` fills the cores (a run has three threads), `gpu` the card (a run has one).
# OUTPUT/log has what the commands print.
set -u
mode=${1:?run, status, stop, pack or smoke} output=${2:?a folder}
here=$(cd "$(dirname "$0")" && pwd)
export OMP_NUM_THREADS=1
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps-$UID/pipe CUDA_MPS_LOG_DIRECTORY=/tmp/mps-$UID/log
expand() { eval echo "$1" | tr ' ' ,; }

# group LANE NAME PLACE JOBS SEEDS EXPERIMENT VARIANTS OPTIONS...: records go to OUTPUT/PLACE/NAME, and `pack` to results/PLACE
groups() {
    methods='{adam,adagrad,l2,si,ewc,online-ewc}'
    # Split MNIST, task scenario: readings with the count of Table 6, and an MLP with the parameters of `best`
    group gpu split-trunk . 7 0-9 split "mnist-task-$methods-neurocoder" --preset paper --recode trunk
    group gpu split-shared . 7 0-9 split "mnist-task-$methods-neurocoder" --preset paper --recode shared --hidden 21
    group gpu split-wide . 7 0-9 split "mnist-{task,domain}-$methods-mlp-wide" --preset best
    # LeNet and MLP: missing rates and seeds, and the MLP of `best` at other rates; validation
    for setting in 3e-5:80 1e-5:150; do
        group gpu "lenet-${setting%:*}" scale 4 100-102 images 'cifar100-lenet-{original,original-wide,neurocoder,neurocoder-constant}' --preset paper --validation --precision bf16-mixed --epochs-lenet "${setting#*:}" --learning-rate "${setting%:*}"
    done
    for rate in 3e-5 1e-4 3e-4 1e-3; do
        group gpu "mlp-$rate" scale 4 100-102 images 'cifar10-mlp-{original,original-wide,neurocoder,neurocoder-constant}' --preset paper --validation --precision bf16-mixed --epochs-mlp 40 --learning-rate "$rate"
        group gpu "mlp-best-$rate" selection 4 100-102 images 'cifar{10,100}-mlp-{original,original-wide,neurocoder,neurocoder-constant}' --preset best --validation --precision bf16-mixed --learning-rate "$rate"
    done
    # DenseNet: three seeds in all on the test set, and small rates on validation images
    group gpu densenet . 6 1-2 images 'cifar{10,100}-densenet-{original,neurocoder,mixture,stored-program}' --preset best --precision bf16-mixed
    for rate in 3e-5 1e-4 3e-4 1e-3; do
        group gpu "densenet-$rate" scale 3 100 images 'cifar100-densenet-{original,neurocoder,neurocoder-constant}' --preset paper --validation --precision bf16-mixed --decay-densenet none --learning-rate "$rate"
    done
    # Split CIFAR: heads that make the 12.6M of Table 6 together with the ResNet; a = 0.1 beside 10
    group gpu cifar-width . 4 0-9 split 'cifar{10,100}-task-{adam,si}-{mlp,neurocoder}' --preset paper --width 940
    group gpu cifar-width-trunk . 4 0-9 split 'cifar{10,100}-task-{adam,si}-neurocoder' --preset paper --width 940 --recode trunk
    group gpu cifar-width-best . 4 0-9 split 'cifar{10,100}-task-{adam,si}-{mlp,neurocoder}' --preset best --width 940
    group gpu cifar-orthogonality . 4 0-9 split 'cifar{10,100}-task-{adam,si}-neurocoder' --preset paper --orthogonality 0.1
    # Atari: rewards as they are, with both controls; three seeds of MsPacman and Frostbite, HyperNet too; A3C itself
    group emulators atari-rewards scale 8 0 atari '{seaquest,mspacman,frostbite}-{plain,neurocoder,scaled,constant,hyper}' --preset best --no-clip-rewards --cores 3
    group emulators atari-seeds . 8 1-2 atari '{mspacman,frostbite}-{plain,hyper,neurocoder} seaquest-hyper' --preset best --cores 3
    group emulators atari-frostbite . 1 0 atari frostbite-hyper --preset best --cores 3
    group emulators a3c . 1 0 atari 'seaquest-{plain,neurocoder}' --preset paper --trainer a3c --workers 16 --steps 2000000 --device cpu
    group emulators atari-rewards-seeds scale 8 1-2 atari '{seaquest,mspacman,frostbite}-{plain,neurocoder,scaled,constant}' --preset best --no-clip-rewards --cores 3
}

command() { # of a group, without its lane
    local name=$1 place=$2 jobs=$3 seeds=$4 experiment=$5 variants=$6
    shift 6
    echo "python3 -m neurocoder.lab run $experiment --resume --variants $(expand "$variants") --seeds $seeds --jobs $jobs --output $output/$place/$name $*"
}

case $mode in
run)
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d 2> /dev/null || true
    rm -rf "$output/queue" && mkdir -p "$output/queue/gpu" "$output/queue/emulators" "$output/log"
    number=10
    group() {
        local lane=$1 name=$2 weight=$4
        shift
        [ "$name" = a3c ] && weight=8 # its workers take every core
        echo "$weight $(command "$@") >> $output/log/$name.txt 2>&1" > "$output/queue/$lane/$number-$name.txt"
        number=$((number + 1))
    }
    groups
    python3 "$here/pool.py" 8 "$output/queue/emulators" --once &
    echo $! > "$output/queue/pids"
    python3 "$here/pool.py" 14 "$output/queue/gpu" --once &
    echo $! >> "$output/queue/pids"
    wait
    ;;
status)
    group() {
        shift
        local first=${4%-*} last=${4#*-} words done
        words=$(expand "$6" | tr , '\n' | wc -l)
        done=$(find "$output/$2/$1" -name 'seed*.json' 2> /dev/null | wc -l)
        echo "$1: $done of $((words * (last - first + 1))) runs$(grep -h ' failed' "$output/log/$1.txt" 2> /dev/null | tail -n 1)"
    }
    groups
    ;;
stop)
    xargs kill < "$output/queue/pids"
    ;;
pack)
    for place in . scale selection; do
        names=()
        group() { [ "$3" != "$place" ] || names+=("$2"); }
        groups
        for name in "${names[@]}"; do
            [ ! -d "$output/$place/$name" ] || python3 -m neurocoder.lab pack --records "$output/$place/$name" --destination "$here/../$place"
        done
    done
    ;;
smoke)
    failed=0
    group() {
        shift
        local name=$1 words=() skip=0 word
        for word in $(command "$@"); do
            case $skip:$word in
            1:*) skip=0 ;;
            *:--preset) words+=(--preset smoke) skip=1 ;;
            *:--seeds) words+=(--seeds 0) skip=1 ;;
            *:--workers) words+=(--workers 2) skip=1 ;;
            *:--jobs | *:--steps | *:--epochs-* | *:--precision | *:--device | *:--cores) skip=1 ;;
            *) words+=("$word") ;;
            esac
        done
        $(command "$@") --dry-run > "$output/$name.txt" 2>&1 || { failed=1 && echo "$name: not as meant" && tail -n 5 "$output/$name.txt"; }
        [[ $name == cifar-* ]] || "${words[@]}" --device cpu > "$output/$name.txt" 2>&1 || { failed=1 && echo "$name: failed" && tail -n 5 "$output/$name.txt"; }
        echo "$name: $(tail -n 1 "$output/$name.txt")"
    }
    mkdir -p "$output" && groups
    exit $failed
    ;;
*)
    echo "mode must be run, status, stop, pack or smoke, got $mode" >&2
    exit 2
    ;;
esac
