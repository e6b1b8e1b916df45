#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Baton's engine beside llama.cpp's on the same GGUF file, threads and step shapes, interleaved.

    bench/compare_llama.py --llama-bin DIR [--model FILE] [--threads N] [--kernels NAME] [--rounds 3] [--no-repack] [--json FILE]

DIR holds llama-bench and llama-batched-bench, built with GGML_NATIVE=ON. A round is: Baton, then llama.cpp. The
median of the rounds' ratios counts, since shared machines drift; the spread is printed beside it.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DECODES = (1, 4, 16, 32)


def run(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"compare_llama: '{' '.join(command)}' failed:\n{done.stderr[-2000:]}")
    return done.stdout


def baton_round(args):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        run([os.path.join(ROOT, "bench/run"), "engine", "--quick", "--json", out.name, "--model", args.model,
             "--threads", str(args.threads), "--kernels", args.kernels])
        report = json.load(open(out.name, encoding="utf-8"))
    return {row["name"]: row["value"] for row in report["rows"]}, report


def llama_round(args):
    """The same rows from llama-bench (prefill, one sequence) and llama-batched-bench (several)."""
    common = ["-m", args.model, "-t", str(args.threads)]
    rates = {}
    bench = [os.path.join(args.llama_bin, "llama-bench"), *common, "-b", "2048", "-ub", "512", "-r", "1", "-o", "json"]
    if args.no_repack:
        bench += ["--repack", "0"]
    for row in json.loads(run(bench + ["-p", "512,2048", "-n", "64"])):
        name = f"prefill {row['n_prompt']}" if row["n_prompt"] else "decode 1 at 0"
        rates[name] = row["avg_ts"]
    batched = [os.path.join(args.llama_bin, "llama-batched-bench"), *common, "-c", str(32 * 580), "-b", "2048", "-ub", "512",
               "-npp", "512", "-ntg", "64", "-npl", ",".join(map(str, DECODES)), "--output-format", "jsonl"]
    if args.no_repack:
        batched.append("--no-repack")
    for line in run(batched).splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            rates[f"decode {row['pl']} at 512"] = row["speed_tg"]
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bin", required=True)
    parser.add_argument("--model", default=os.path.join(ROOT, "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-repack", action="store_true",
                        help="llama.cpp without repacked and AMX weights (its AMX code may crash on small models)")
    parser.add_argument("--json")
    args = parser.parse_args()
    args.model = os.path.abspath(args.model)
    args.llama_bin = os.path.abspath(args.llama_bin)

    rounds = []
    for i in range(args.rounds):
        baton, report = baton_round(args)
        llama = llama_round(args)
        rounds.append((baton, llama))
        print(f"# round {i + 1} of {args.rounds} done", file=sys.stderr, flush=True)
    machine = report["machine"]
    print(f"# {machine['cpu']}, {machine['cpus']} CPUs, {args.threads} threads, kernels {report['kernels']}, {os.path.basename(args.model)}")
    print(f"{'tokens/s':16} {'Baton':>10} {'llama.cpp':>10} {'ratio':>7}  spread")
    rows = []
    for name in rounds[0][0]:
        if any(name not in llama for _, llama in rounds):
            continue
        ratios = [baton[name] / llama[name] for baton, llama in rounds]
        row = {"name": name, "baton": statistics.median(b[name] for b, _ in rounds),
               "llama_cpp": statistics.median(l[name] for _, l in rounds),
               "ratio": statistics.median(ratios), "ratios": ratios}
        rows.append(row)
        print(f"{name:16} {row['baton']:10.1f} {row['llama_cpp']:10.1f} {row['ratio']:7.2f}  {min(ratios):.2f}-{max(ratios):.2f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"machine": machine, "threads": args.threads, "kernels": report["kernels"], "rows": rows}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
