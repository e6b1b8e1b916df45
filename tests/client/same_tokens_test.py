# SPDX-License-Identifier: Apache-2.0
"""Same tokens, however they were computed (DESIGN.md, section 1), through real processes.

About 100 random requests, one at a time on one worker without a prefix cache, are the truth. Then all of them at concurrency
32 through a router, a prefill and a decode worker: chunks of 16, 64 and 512, 1 and 2 threads, shm and tcp, prefix hits,
partial pulls, and preemption in a pool too small for all. Token ids, log-probabilities (each float, compared with ==),
texts and ends must be equal, and the workers' counters prove that what was to happen did happen.
"""
import concurrent.futures
import os
import random
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from members import Members, demo_model, generate, pb, wait_for  # noqa: E402

CONCURRENCY = 32
N_LAST = 2  # requests that come one by one after the rest: each shares the prefix of the one before


def draw_sampling(rng, max_tokens):
    sampling = pb.Sampling(
        temperature=rng.choice([0, 0, 0.3, 0.8, 1, 1.5]), top_k=rng.choice([0, 0, 20]), top_p=rng.choice([0, 0.9]),
        min_p=rng.choice([0, 0, 0.05]), repetition_penalty=rng.choice([0, 0, 1.2]),
        presence_penalty=rng.choice([0, 0, 0.4]), frequency_penalty=rng.choice([0, 0, 0.5]), seed=rng.getrandbits(63),
        max_tokens=rng.randint(1, max_tokens), ignore_eos=rng.random() < 0.7)
    if rng.random() < 0.5:
        sampling.logprobs, sampling.n_top_logprobs = True, 5
        sampling.echo = rng.random() < 0.2
    if rng.random() < 0.2:
        sampling.logit_bias[rng.randrange(200)] = 3.0
    return sampling


def draw_requests(n, n_vocab, prompt_max, max_tokens, seed):
    """Prompts of 1 token to prompt_max; two of three begin as others do, some hold nothing more."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(n_vocab) for _ in range(prompt_max)] for _ in range(4)]
    requests = []
    for _ in range(n):
        length = rng.randint(1, prompt_max if rng.random() < 0.4 else prompt_max // 3)
        shared = rng.randint(0, length) if rng.random() < 0.7 else 0
        ids = rng.choice(prefixes)[:shared] + [rng.randrange(n_vocab) for _ in range(length - shared)]
        requests.append(pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=draw_sampling(rng, max_tokens)))
    return requests


def draw_last(n_vocab, seed):
    """N_LAST requests, each with the prompt of the one before and some tokens more."""
    rng = random.Random(seed)
    ids, requests = [rng.randrange(n_vocab) for _ in range(40)], []
    for _ in range(N_LAST):
        ids = ids + [rng.randrange(n_vocab) for _ in range(20)]
        requests.append(pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids),
                                           sampling=pb.Sampling(max_tokens=6, temperature=1, seed=seed, ignore_eos=True)))
    return requests


def draw_alike(n, n_vocab, n_prompt, n_new, seed):
    """n requests of one size, which outgrow a pool that just holds their prompts."""
    rng = random.Random(seed)
    return [pb.GenerateRequest(token_ids=pb.TokenIds(ids=[rng.randrange(n_vocab) for _ in range(n_prompt)]),
                               sampling=pb.Sampling(max_tokens=n_new, temperature=1, seed=i, ignore_eos=True))
            for i in range(n)]


def outcome(replies):
    """All that must not depend on how it was computed."""
    tokens, logprobs, text, finish = [], [], [], replies[-1].finish
    for reply in replies:
        tokens += [(reply.is_prompt, reply.first_index + i, token) for i, token in enumerate(reply.token_ids)]
        logprobs += [(p.token_id, p.piece, p.HasField("logprob"), p.logprob,
                      [(top.token_id, top.logprob) for top in p.top]) for p in reply.logprobs]
        text.append(reply.text)
    return {"tokens": tokens, "logprobs": logprobs, "text": "".join(text), "reason": finish.reason,
            "stop token": finish.stop_token_id, "generated": finish.usage.generated_tokens}


class SameTokensTest(unittest.TestCase):
    def expect_same(self, truth, other, what):
        for i, (wanted, got) in enumerate(zip(truth, other)):
            for key, value in wanted.items():
                if value == got[key]:
                    continue
                if isinstance(value, list):
                    at = next((k for k, pair in enumerate(zip(value, got[key])) if pair[0] != pair[1]),
                              min(len(value), len(got[key])))
                    value, got[key] = value[at:at + 1], got[key][at:at + 1]
                    key = f"{key} at {at}"
                self.fail(f"{what}: request {i} differs in {key}: {got[key.split(' at ')[0]]} in place of {value}")

    def run_alone(self, model, requests):
        members = Members(model)
        self.addCleanup(members.close)
        members.worker("both", "both", "--threads", "1", "--no-prefix-cache")
        members.wait_ready()
        runs = [generate(members.stub, request) for request in requests]
        routes = {run[-1].finish.route.numerics_id for run in runs}
        self.assertEqual(len(routes), 1)
        members.close_clean(self)
        return [outcome(run) for run in runs], routes.pop()

    @staticmethod
    def agreeing(workers):
        """The workers, once their last reports are here: over shm nothing is served, the puller copies."""
        return workers if workers["p"].bytes_served in (0, workers["d"].bytes_pulled) else None

    def run_split(self, model, requests, prefill, decode, *router):
        """All requests through one prefill and one decode worker; returns outcomes, finishes, and both workers."""
        members = Members(model, "--worker-timeout", "60s", *router)
        self.addCleanup(members.close)
        members.worker("p", "prefill", *prefill)
        members.worker("d", "decode", *decode)
        members.wait_ready()
        members.signal("d", signal.SIGSTOP)  # until there are as many as it shall have at once
        with concurrent.futures.ThreadPoolExecutor(CONCURRENCY) as pool:
            futures = [pool.submit(generate, members.stub, request) for request in requests[:-N_LAST]]
            begun = requests[:min(CONCURRENCY, len(futures))]
            at_once = sum(request.sampling.max_tokens > 1 for request in begun)  # the others end without it
            try:
                wait_for("all clients' requests", lambda: members.status().router.requests_running >= at_once)
            finally:
                members.signal("d", signal.SIGCONT)
            runs = [future.result() for future in futures]
        members.wait_idle()
        runs += [generate(members.stub, request) for request in requests[-N_LAST:]]
        members.wait_idle()
        workers = wait_for("equal counts of bytes", lambda: self.agreeing(members.workers()))
        members.close_clean(self)
        return [outcome(run) for run in runs], [run[-1].finish for run in runs], workers["p"], workers["d"]

    def compare(self, model, requests, truth, numerics_id, ways):
        for name, prefill, decode, router, preempts in ways:
            with self.subTest(name):
                outcomes, finishes, p, d = self.run_split(model, requests, prefill, decode, *router)
                self.expect_same(truth, outcomes, name)
                self.assertEqual({finish.route.numerics_id for finish in finishes}, {numerics_id})
                self.assertEqual(p.decode_tokens, 0)
                self.assertGreater(p.prefix_hit_tokens, 0)
                self.assertGreater(d.partial_pulls, 0)
                self.assertGreater(sum(finish.route.blocks_skipped for finish in finishes), 0)
                self.assertEqual(sum(finish.route.preemptions for finish in finishes), d.preemptions)
                if "--no-local-prefill" in router:
                    self.assertEqual(d.prefill_tokens, 0)
                if preempts:
                    self.assertGreater(d.preemptions, 0)
                    self.assertGreater(d.recomputed_tokens, 0)
                if "tcp" in decode:
                    self.assertEqual({finish.route.transport for finish in finishes} - {""}, {"tcp"})
                    self.assertGreater(p.bytes_served, 0)

    def all_ways(self, model, block_bytes):
        requests = draw_requests(100, 256, 300, 40, 20261129) + draw_last(256, 5)
        truth, numerics_id = self.run_alone(model, requests)
        self.compare(model, requests, truth, numerics_id, [
            ("chunks of 16, 1 thread, a small pool",
             ["--chunk", "16", "--token-budget", "48", "--threads", "1"],
             ["--chunk", "16", "--token-budget", "48", "--threads", "1", "--kv-pool-bytes", str(60 * block_bytes)],
             ["--no-local-prefill"], True),
            ("chunks of 64, 2 threads, tcp",
             ["--chunk", "64", "--token-budget", "160", "--threads", "2"],
             ["--threads", "2", "--kv-transport", "tcp"],
             ["--no-local-prefill"], False),
            ("chunks of 512, 1 and 2 threads, short prompts on the decode worker",
             ["--chunk", "512", "--token-budget", "600", "--threads", "2"],
             ["--chunk", "512", "--token-budget", "600", "--threads", "1"],
             ["--local-prefill", "--local-prefill-tokens", "24"], False),
        ])

    def test_heads_of_8_and_odd_widths(self):
        self.all_ways("odd", 3 * 5 * 2 * 8 * 16 * 2)

    def test_heads_of_64_in_groups(self):
        self.all_ways("wide", 2 * 2 * 2 * 64 * 16 * 2)

    def test_demo_model(self):
        requests = draw_alike(4, 40000, 33, 40, 3) + draw_requests(5, 40000, 100, 16, 7) + draw_last(40000, 5)
        truth, numerics_id = self.run_alone(demo_model(), requests)
        self.compare(demo_model(), requests, truth, numerics_id, [
            ("chunks of 64, a small pool",
             ["--chunk", "64", "--threads", "1"],
             ["--threads", "2", "--kv-pool-bytes", str(12 * 30 * 3 * 2 * 64 * 16 * 2)],
             ["--no-local-prefill"], True),
        ])


if __name__ == "__main__":
    unittest.main()
