#!/usr/bin/env bash
# What one graphics card can tell in nine minutes; `page.py` makes the page of it, elsewhere and later.
#
#   bench/card/run.sh MODEL OUT
#
# MODEL is a small model (SmolLM2-135M, BF16), of which targets and drafts are made; OUT takes raw results and logs. Nothing is
# fetched. Run it again, with the same OUT, after an interruption: steps whose results are there are skipped, and tables go on at
# their next cell. No step begins when BUDGET seconds are over, or runs on beyond them; a step that fails does not stop the others.
#
#   BUDGET=540           seconds                        WORK=/tmp/pyspec-card   where models are made: 30 GB
#   WIDE=8               how wide the target is made    EXPERTS=32 ACTIVE=4     of the mixture
#   SEQUENCES, TEMPS, SECONDS_A_CELL, TOKENS, ANSWER, DEPTHS, LIMIT, CLIENTS, TESTS: smaller ones, for a rehearsal
#   SERVER=llama-server  of the same build; without it, what needs it is left out
#   LAYERS=auto          layers on the card; PYTHON=python
set -u
model=${1:?give a small model} out=${2:?give a folder for the results}
bench=$(cd "$(dirname "$0")/.." && pwd) root=$(cd "$(dirname "$0")/../.." && pwd)
BUDGET=${BUDGET:-540} WORK=${WORK:-/tmp/pyspec-card} WIDE=${WIDE:-8} EXPERTS=${EXPERTS:-32} ACTIVE=${ACTIVE:-4}
SEQUENCES=${SEQUENCES:-1,4,8,16,32,64} TEMPS=${TEMPS:-0,0.8} SECONDS_A_CELL=${SECONDS_A_CELL:-0.7} TOKENS=${TOKENS:-192}
DEPTHS=${DEPTHS:-64,1000,4000} LIMIT=${LIMIT:-1} SERVER=${SERVER:-llama-server} LAYERS=${LAYERS:-auto} PYTHON=${PYTHON:-python}
ANSWER=${ANSWER:-128} CLIENTS=${CLIENTS:-1 4 16} TESTS=${TESTS:-tests/engine tests/llama}
until=$(($(date +%s) + BUDGET))
mkdir -p "$out" "$WORK" || exit 1
out=$(cd "$out" && pwd) model=$(cd "$(dirname "$model")" && pwd)/$(basename "$model")
export PYTHONPATH="$bench:$bench/card${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
cd "$root" || exit 1

child=
trap '[ -z "$child" ] || kill "$child"; exit 130' INT TERM # timeout passes it on to the whole step

# step NAME LIMIT RESULT COMMAND...: runs it for at most LIMIT seconds unless RESULT exists; "-" has no such file
step() {
    local name=$1 limit=$2 result=$3 left=$((until - $(date +%s))) begin rc
    shift 3
    if [ -e "$result" ]; then echo "$name: done before"; return; fi
    if [ "$left" -le 0 ]; then echo "$name: no time left"; return; fi
    begin=$(date +%s)
    timeout -k 5 "$((left < limit ? left : limit))" "$@" >>"$out/$name.log" 2>&1 &
    child=$!
    wait "$child"
    rc=$?
    printf '{"step": "%s", "status": %d, "seconds": %d}\n' "$name" "$rc" "$(($(date +%s) - begin))" >>"$out/steps.jsonl"
    echo "$name: status $rc after $(($(date +%s) - begin)) s, $((until - $(date +%s))) s left"
}

# make NAME OPTIONS...: a model of MODEL in WORK; a killed run leaves no half of one under its name
make() {
    local made=$WORK/$1.gguf
    step "make-$1" 120 "$made" bash -c '"$1" bench/stretch.py "$2" "$3.part" "${@:4}" && mv "$3.part" "$3"' \
        - "$PYTHON" "$model" "$made" "${@:2}"
}

# compare NAME TARGET MODES OPTIONS...: `bench/compare.py` with the good draft; it resumes question by question
compare() {
    step "$1" 75 "$out/$1/results.json" "$PYTHON" bench/compare.py -m "$WORK/$2.gguf" --draft "lookup+$WORK/good.gguf" \
        --modes "$3" --limit "$LIMIT" -n "$ANSWER" --warm-up 1 -c 4096 -ngl "$LAYERS" --title "$1" --out "$out/$1" "${@:4}"
}

make good --drop 4
make poor --drop 28
if [ "$WIDE" = 1 ]; then ln -sf "$model" "$WORK/wide.gguf"; else make wide --wide "$WIDE"; fi
compare bench-t0 wide plain,strict,margin --temp 0
step sequences 240 - "$PYTHON" bench/card/sequences.py "$WORK/wide.gguf" "$out/sequences.jsonl" --good "$WORK/good.gguf" \
    --poor "$WORK/poor.gguf" --companion models/smollm2-companion.gguf --sequences "$SEQUENCES" --temps "$TEMPS" \
    --tokens "$TOKENS" --seconds "$SECONDS_A_CELL" --gpu-layers "$LAYERS" --until "$until"
compare bench-t08 wide plain,strict --temp 0.8
compare bench-t1 wide plain,strict,margin --temp 1
step curves 60 - "$PYTHON" bench/card/curves.py "$WORK/wide.gguf" "$out/curves.jsonl" --depths "$DEPTHS" --until "$until" \
    --gpu-layers "${LAYERS/auto/-1}"
if command -v "$SERVER" >/dev/null; then
    for clients in $CLIENTS; do
        step "serve-$clients" 60 "$out/serve-$clients.json" "$PYTHON" bench/serve.py "$WORK/wide.gguf" \
            bench/measure/questions.jsonl --server "$SERVER" --draft "$WORK/good.gguf" --clients "$clients" \
            --requests "$((4 + 2 * clients))" --tokens "$ANSWER" --out "$out/serve-$clients.json" --title "$clients clients" \
            --contenders "pyspec:lookup+$WORK/good.gguf,llama-server,llama-server:2,llama-server:4"
    done
fi
step tests 90 "$out/tests.xml" env PYSPEC_TEST_OFFLOAD=-1 PYSPEC_TEST_TARGET="$model" \
    "$PYTHON" -m pytest $TESTS -v -p no:cacheprovider --junitxml="$out/tests.xml"
make mixture --experts "$EXPERTS" --active "$ACTIVE"
compare mixture-card mixture plain,strict --temp 0
compare mixture-processor mixture plain,strict --temp 0 --cpu-moe
