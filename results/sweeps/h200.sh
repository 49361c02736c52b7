#!/usr/bin/env bash
# `queue.sh` on a bare machine with a GPU that is lent for half an hour, a command at most ten minutes of it, and where
# what starts a session of its own runs on between commands:
#
#     PREPARE='python3 unpack.py /tmp/data' NEUROCODER_DATA=/tmp/data \
#     bash results/sweeps/h200.sh start OUTPUT [NAME ...]        # PREPARE, then MPS and these groups of the queue; returns at once
#     bash results/sweeps/h200.sh wait OUTPUT FOLDER [SECONDS]   # status until the queue ends or so long (540), then FOLDER/records.tar.gz
#     bash results/sweeps/h200.sh unpack OUTPUT RECORDS.tar.gz   # at home: into OUTPUT, and from there into results/
#
# PREPARE brings the data sets where NEUROCODER_DATA says; without it they are there. A tar holds all finished records
# and the logs, not checkpoints: choose groups that end in time (`queue.sh status` has their minutes). To go on another
# day, bring an OUTPUT with the tars unpacked: finished runs are not repeated.
set -eu
mode=${1:?start, wait or unpack} output=${2:?a folder}
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../../src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
shift 2

case $mode in
start)
    mkdir -p "$output/log"
    echo "$*" > "$output/names"
    setsid nohup bash -c "${PREPARE:-true} && bash '$here/queue.sh' run '$output' $*; echo ended" > "$output/log/queue.txt" 2>&1 < /dev/null &
    ;;
wait)
    folder=${1:?a folder} seconds=${2:-540}
    end=$((SECONDS + seconds))
    while [ $SECONDS -lt $end ] && [ "$(tail -n 1 "$output/log/queue.txt")" != ended ]; do
        sleep 5
    done
    # shellcheck disable=SC2046
    bash "$here/queue.sh" status "$output" $(cat "$output/names")
    tail -n 2 "$output/log/queue.txt"
    mkdir -p "$folder"
    (cd "$output" && find . -name 'seed*.json' -o -path './log/*.txt' -o -path './script/*' -type f) | tar -czf "$folder/records.tar.gz" -C "$output" -T -
    ;;
unpack)
    mkdir -p "$output"
    for file in "$@"; do tar -xzf "$file" -C "$output"; done
    bash "$here/queue.sh" pack "$output"
    ;;
*)
    echo "mode must be start, wait or unpack, got $mode" >&2
    exit 2
    ;;
esac
