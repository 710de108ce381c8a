#!/bin/sh
# Builds and runs the C tests, or those named, under AddressSanitizer (with leaks) and UndefinedBehaviorSanitizer, the lock's
# under ThreadSanitizer. CC names another compiler. With PLAIN=1 there are no sanitizers and nothing is optimised, which takes
# seconds. With TARGET, such as aarch64-linux-musl for zig's, the tests are built for another processor, without sanitizers,
# and run by RUN (cross.sh).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
asked=${*:-kernels temper engine rows rollback faults index inputs lock}

level="-O2 -g"
if [ -n "${TARGET:-}" ]; then # static, so that an emulator needs no other system's libraries; their loops are vectorised as they can be
    kind="-target $TARGET -static -Wno-pass-failed"
elif [ -n "${PLAIN:-}" ]; then
    kind= level=-O0
else
    kind="-fno-sanitize-recover=all -fno-omit-frame-pointer"
fi

try() { # try NAME SOURCE...: if asked for, built as the wheel has it, warnings as errors, and run; every finding is fatal
    name=$1
    shift
    case " $asked " in *" $name "*) ;; *) return 0 ;; esac
    sanitizers="-fsanitize=${checks:-address,undefined}"
    [ -z "${TARGET:-}${PLAIN:-}" ] || sanitizers=
    # unquoted: each may be several words
    ${CC:-cc} $kind $sanitizers -std=c11 $level -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror \
        -fopenmp-simd -ffp-contract=fast -fno-trapping-math -fno-math-errno -Wno-unknown-pragmas \
        "$@" -o "$out/$name" -lm
    ${RUN:-} "$out/$name"
}

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 TSAN_OPTIONS=halt_on_error=1
cd "$here/.."
fixture="tests/fixture.c tests/check.c tests/fake_llama.c"
refuse="tests/refuse.c -Dmalloc=may_malloc -Dcalloc=may_calloc -Drealloc=may_realloc" # no linker's --wrap: not all have it
try kernels tests/test_kernels.c tests/check.c ps_simd.c ps_scan.c ps_noise.c ps_draw.c ps_agree.c ps_gate.c ps_status.c
try temper tests/test_temper.c tests/check.c ps_temper.c ps_simd.c ps_scan.c ps_noise.c ps_draw.c ps_status.c
try engine tests/test_engine.c $fixture ps_*.c
try rows tests/test_rows.c $fixture ps_*.c
try rollback tests/test_rollback.c $fixture ps_*.c
try faults tests/test_faults.c $fixture ps_*.c $refuse
try index tests/test_index.c tests/check.c ps_index.c ps_status.c $refuse
try inputs tests/test_inputs.c tests/check.c tests/fake_llama.c ps_*.c
[ -n "${TARGET:-}${PLAIN:-}" ] || RUN="setarch $(uname -m) -R" # ThreadSanitizer wants its addresses where it put them
checks=thread try lock tests/test_lock.c $fixture ps_*.c -pthread # the lock and the cancel flag are what threads share
