#!/bin/sh
# Builds the C tests for other processors and runs them by qemu's user emulation: s390x has its bytes the other way round.
# CC is a compiler that takes -target, such as zig's (`python -m ziglang cc`); arguments name other processors.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$here/.."
[ $# -gt 0 ] || set -- x86_64 aarch64 riscv64 s390x

build() { # build NAME SOURCE...: static, so that qemu needs no other system's libraries
    name=$1
    shift
    # ${CC} unquoted: it may be several words
    ${CC:-python3 -m ziglang cc} -target "$cpu-linux-musl" -std=c11 -O2 -static -Wall -Wextra -Werror -Wno-unknown-pragmas \
        -fopenmp-simd -ffp-contract=fast -fno-trapping-math -fno-math-errno "$@" -o "$out/$name" -lm
}

fixture="tests/fixture.c tests/check.c tests/fake_llama.c"
for cpu; do
    run="qemu-$cpu"
    [ "$(uname -m)" != "$cpu" ] || run=
    build kernels tests/test_kernels.c tests/check.c ps_simd.c ps_scan.c ps_agree.c ps_gate.c ps_status.c
    build engine tests/test_engine.c $fixture ps_*.c
    build faults tests/test_faults.c $fixture ps_*.c -Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=realloc
    build inputs tests/test_inputs.c tests/check.c tests/fake_llama.c ps_*.c
    build lock tests/test_lock.c $fixture ps_*.c -pthread
    for name in kernels engine faults inputs lock; do
        echo "$cpu $name"
        $run "$out/$name"
    done
done
