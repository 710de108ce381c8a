#!/usr/bin/env python3
"""llama.cpp's server out of the wheel xllamacpp, started like a llama-server: a peer that needs no compiler.

    pip install xllamacpp
    python serve.py MODEL QUESTIONS --server llama_server.py

It takes those of llama-server's options that benchmarks give. `--spec-draft-sampling probabilistic` draws drafts from the draft's
distribution above temperature 0; the llama-server of llama-cpp-python 0.3.36 has no such option.
"""

from __future__ import annotations

import argparse
import signal
import sys

import xllamacpp


def options() -> argparse.ArgumentParser:
    """The options, by llama-server's names."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("-m", required=True, metavar="MODEL")
    parser.add_argument("--host", default="127.0.0.1")
    numbers = {
        "--port": 8080, "-c": 4096, "-t": 2, "-tb": 2, "-ngl": 0, "--cache-ram": 8192, "-b": 2048, "-ub": 512,
        "-td": 2, "--spec-draft-n-max": 3,
    }  # fmt: skip
    for name, default in numbers.items():
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("--no-ui", action="store_true")
    parser.add_argument("--spec-type", default="none")
    parser.add_argument("-md", metavar="DRAFT")
    kinds = ("greedy", "probabilistic")
    parser.add_argument("--spec-draft-sampling", choices=kinds, default=kinds[0])
    return parser


def params(asked: argparse.Namespace) -> xllamacpp.CommonParams:
    """What the server is started with."""
    found = xllamacpp.CommonParams()
    found.model.path = asked.m
    found.n_ctx, found.n_parallel, found.n_gpu_layers = asked.c, asked.parallel, asked.ngl
    found.cpuparams.n_threads, found.cpuparams_batch.n_threads = asked.t, asked.tb
    found.hostnames, found.port, found.cache_ram_mib = [asked.host], asked.port, asked.cache_ram
    found.n_batch, found.n_ubatch = asked.b, asked.ub
    kind = "COMMON_SPECULATIVE_TYPE_" + asked.spec_type.upper().replace("-", "_")
    found.speculative.types = [getattr(xllamacpp.common_speculative_type, kind)]
    draft = found.speculative.draft
    draft.n_max = asked.spec_draft_n_max
    draft.probabilistic = asked.spec_draft_sampling == "probabilistic"
    if asked.md:
        draft.mparams.path = asked.md
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = asked.td
    return found


def main() -> None:
    """Serve until terminated."""
    server = xllamacpp.Server(params(options().parse_args()))
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    sys.exit()


if __name__ == "__main__":
    main()
