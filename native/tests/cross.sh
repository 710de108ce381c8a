#!/bin/sh
# Builds the C tests for other processors and runs them by qemu's user emulation: s390x has its bytes the other way round.
# CC is a compiler that takes -target, such as zig's; arguments name processors.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export CC="${CC:-python3 -m ziglang cc}"
[ $# -gt 0 ] || set -- x86_64 aarch64 riscv64 s390x
for cpu; do
    echo "-- $cpu"
    RUN="qemu-$cpu"
    [ "$(uname -m)" != "$cpu" ] || RUN=
    TARGET="$cpu-linux-musl" RUN=$RUN sh "$here/run.sh"
done
