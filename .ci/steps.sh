# What .ci/run and .ci/weekly share. PYTHON names another interpreter. Every step runs even when one before it failed; `finish`
# prints a line of time for each, and its status tells whether any failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=()
times=()

step() { # step NAME COMMAND...
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    "$@" || failed+=("$name")
    times+=("$(printf '%6d s  %s' $((SECONDS - start)) "$name")")
}

finish() {
    printf '%s\n' "== times" "${times[@]}" "$(printf '%6d s  in all' "$SECONDS")"
    if ((${#failed[@]})); then
        echo "FAILED: ${failed[*]}"
        exit 1
    fi
    echo "all passed"
}

packages() { # packages PROGRAM:PACKAGE...: installs Debian's packages of the programs that are missing, where that is possible
    local one missing=()
    for one; do command -v "${one%:*}" > /dev/null || missing+=("${one#*:}"); done
    ((${#missing[@]})) || return 0
    if command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
        apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}" > /dev/null && return
    fi
    echo "not here: ${missing[*]}; tests of them are skipped"
}

environment() { # environment NAME REQUIREMENT...: a new one, first on the PATH from now on
    "${PYTHON:-python3}" -m venv "$work/$1" && export PATH="$work/$1/bin:$PATH" && python -m pip install -q --upgrade pip &&
        python -m pip install -q "${@:2}"
}

rpc_wheel() { # llama-cpp-python with RPC, whose server is a device that every machine has; 5 minutes, kept where there is a cache
    local version kept=${XDG_CACHE_HOME:-$HOME/.cache}/pyspec-ci
    version=$(python -c 'from importlib.metadata import version; print(version("llama-cpp-python"))') || return
    mkdir -p "$kept" 2> /dev/null && [ -w "$kept" ] || kept=$work
    wheels=$kept/rpc-$version-$(cc -dumpfullversion -dumpmachine | tr '\n' '-')$(grep -m1 '^flags' /proc/cpuinfo | cksum | cut -d' ' -f1)
    ls "$wheels"/*.whl > /dev/null 2>&1 && return
    # without pip's cache, which tells no two builds of one source apart
    CMAKE_ARGS="-DGGML_RPC=ON -DLLAVA_BUILD=OFF" python -m pip wheel -q --no-deps --no-cache-dir \
        --no-binary llama-cpp-python "llama-cpp-python==$version" -w "$wheels"
}

another() { # another version of Python, the newest here; the same where there is no other
    local ask='import sys; print(sys.version_info[:2])' first found
    first=$("${PYTHON:-python3}" -c "$ask")
    for found in $(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[0-9]*/bin/python3 2> /dev/null | sort -Vr) python3.14 python3.13 python3.12; do
        [ "$("$found" -c "$ask" 2> /dev/null || echo "$first")" = "$first" ] || { echo "$found" && return; }
    done
    echo "${PYTHON:-python3}"
}

on_a_device() { # on_a_device PYTEST-ARGUMENT...: with such a device, and another Python: collecting objects in another order has ended the process
    if [ ! -d "$work/rpc" ]; then
        rpc_wheel && "$(another)" -m venv "$work/rpc" && "$work/rpc/bin/python" -m pip install -q --upgrade pip &&
            "$work/rpc/bin/python" -m pip install -q "$wheels"/*.whl '.[test,dev]' && "$work/rpc/bin/python" --version || return
    fi
    "$work/rpc/bin/pytest" "$@"
}

elsewhere() { # elsewhere PROCESSOR...: the C tests there, by zig's compiler and qemu
    python -m pip install -q ziglang && CC="python -m ziglang cc" sh native/tests/cross.sh "$@"
}

wheels() { # what is published: the code by way of its sdist, under 1 MB, and the models that ship as a package of their own
    python -m pip install -q build twine && python -m build -q -o "$work/dist" . && python -m build -q --wheel -o "$work/dist" models &&
        python -m twine check --strict "$work/dist"/* && ls -l "$work/dist" || return
    local size
    size=$(stat -c %s "$work/dist"/pyspec_llama-*.whl)
    [ "$size" -lt 1000000 ] || { echo "the wheel of the code has $size bytes: something large lies in it"; return 1; }
    ! python -m zipfile -l "$(echo "$work/dist"/pyspec_llama-*.whl)" | grep -E '^(pyspec/)?(bench|measure|models/(recipe|text))/' ||
        { echo "the wheel of the code has what only a clone uses"; return 1; }
}
