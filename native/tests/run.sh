#!/bin/sh
# Builds and runs the C tests under AddressSanitizer (with leaks) and UndefinedBehaviorSanitizer, the lock's under
# ThreadSanitizer. CC names another compiler. With TARGET, such as aarch64-linux-musl for zig's, the tests are built for another
# processor or for Windows, without sanitizers, and run by RUN (cross.sh).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

if [ -n "${TARGET:-}" ]; then # static, so that an emulator needs no other system's libraries; their loops are vectorised as they can be
    kind="-target $TARGET -static -Wno-pass-failed"
else
    kind="-fno-sanitize-recover=all -fno-omit-frame-pointer"
fi

build() { # build NAME SOURCE...: everything as the wheel has it, warnings as errors, every finding fatal
    name=$1
    shift
    sanitizers="-fsanitize=${checks:-address,undefined}"
    [ -z "${TARGET:-}" ] || sanitizers=
    # unquoted: each may be several words
    ${CC:-cc} $kind $sanitizers -std=c11 -O2 -g -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror \
        -fopenmp-simd -ffp-contract=fast -fno-trapping-math -fno-math-errno -Wno-unknown-pragmas \
        "$@" -o "$out/$name" -lm
}

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
cd "$here/.."
build kernels tests/test_kernels.c tests/check.c ps_simd.c ps_scan.c ps_noise.c ps_draw.c ps_agree.c ps_gate.c ps_status.c
${RUN:-} "$out/kernels"
fixture="tests/fixture.c tests/check.c tests/fake_llama.c"
build engine tests/test_engine.c $fixture ps_*.c
${RUN:-} "$out/engine"
refuse="tests/refuse.c -Dmalloc=may_malloc -Dcalloc=may_calloc -Drealloc=may_realloc" # no linker's --wrap: not all have it
build faults tests/test_faults.c $fixture ps_*.c $refuse
${RUN:-} "$out/faults"
build index tests/test_index.c tests/check.c ps_index.c ps_status.c $refuse
${RUN:-} "$out/index"
build inputs tests/test_inputs.c tests/check.c tests/fake_llama.c ps_*.c
${RUN:-} "$out/inputs"
# the lock and the cancel flag are what threads share
checks=thread build lock tests/test_lock.c $fixture ps_*.c -pthread
[ -n "${TARGET:-}" ] || RUN="setarch $(uname -m) -R"
TSAN_OPTIONS=halt_on_error=1 ${RUN:-} "$out/lock"
