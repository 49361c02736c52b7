#!/usr/bin/env bash
# The benchmark's cases of core layers on a GPU, alone; with SMOKE set, a small one on a CPU, into OUT.
set -eu
cd "$(dirname "$0")/../.."
if [ -n "${SMOKE:-}" ]; then
    exec python3 -m neurocoder.lab bench --device cpu --quick --skip compiled --cases core-784x10 --output "$OUT"
fi
exec python3 -m neurocoder.lab bench --device cuda --cases core-1024x1024 core-1024x1024-compiled gpt gpt-reduced
