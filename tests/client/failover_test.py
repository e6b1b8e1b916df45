# SPDX-License-Identifier: Apache-2.0
"""Streams outlive their workers: a member is killed (SIGKILL) while 16 requests run, and every stream goes on to its end
with the tokens, log-probabilities, text and usage of an undisturbed run, compared with ==. The kill comes as soon as the
streams are in the state that a test is about, and the streams are long enough that it comes in time.
"""
import os
import random
import sys
import threading
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from members import TIMEOUT_S, Members, generate, pb, tokens_of, wait_for  # noqa: E402
from same_tokens_test import outcome  # noqa: E402

N_STREAMS = 16
N_VOCAB = 256  # ids that every tiny model has


def draw_requests(prompt_max, tokens_min, tokens_max, seed):
    rng = random.Random(seed)
    requests = []
    for _ in range(N_STREAMS):
        sampling = pb.Sampling(
            temperature=rng.choice([0, 0.5, 1, 1.5]), top_k=rng.choice([0, 20]), top_p=rng.choice([0, 0.9]),
            repetition_penalty=rng.choice([0, 1.2]), presence_penalty=rng.choice([0, 0.4]),
            frequency_penalty=rng.choice([0, 0.5]), seed=rng.getrandbits(63), ignore_eos=True,
            max_tokens=rng.randint(tokens_min, tokens_max))
        if rng.random() < 0.5:
            sampling.logprobs, sampling.n_top_logprobs = True, 3
            sampling.echo = rng.random() < 0.5
        ids = [rng.randrange(N_VOCAB) for _ in range(rng.randint(1, prompt_max))]
        requests.append(pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=sampling))
    return requests


class Streams:
    """Requests that run at the same time; each reply is kept as it comes."""

    def __init__(self, members, requests):
        self.replies = [[] for _ in requests]
        self.errors = [None for _ in requests]
        self.threads = [threading.Thread(target=self.read, args=[members, i, request])
                        for i, request in enumerate(requests)]
        for thread in self.threads:
            thread.start()

    def read(self, members, i, request):
        try:
            for reply in members.stub.Generate(request, timeout=TIMEOUT_S):
                self.replies[i].append(reply)
        except grpc.RpcError as error:
            self.errors[i] = error

    def n_begun(self):
        return sum(bool(tokens_of(replies)) for replies in list(self.replies))

    def join(self):
        for thread in self.threads:
            thread.join()
        return self.replies


class FailoverTest(unittest.TestCase):
    def start(self, workers, *router_options, options=()):
        members = Members("wide", *router_options)
        self.addCleanup(members.close)
        for name, role in workers.items():
            members.worker(name, role, "--threads", "1", *options)
        members.wait_ready()
        return members

    def run_both_ways(self, members, requests, disturb):
        """All requests undisturbed, then again beside disturb(streams); returns the second replies."""
        truth = [outcome(replies) for replies in Streams(members, requests).join()]
        for request in requests:
            request.cache_salt = "again"  # what was computed for the truth is no help now
        streams = Streams(members, requests)
        disturb(streams)
        replies = streams.join()
        self.assertEqual(streams.errors, [None] * len(requests))
        for request, found, expected in zip(requests, replies, truth):
            self.assertEqual(outcome(found), expected)
            usage = found[-1].finish.usage
            self.assertEqual(usage.prompt_tokens, len(request.token_ids.ids))
            self.assertLessEqual(usage.cached_tokens, usage.prompt_tokens)
        return replies

    def kill_when(self, members, name, what, condition):
        wait_for(what, condition)
        members.kill(name)

    def expect_recovered(self, members, replies, dead):
        attempts = [reply[-1].finish.route.attempts for reply in replies]
        self.assertGreater(max(attempts), 1)
        for reply in replies:
            route = reply[-1].finish.route
            if route.attempts > 1:
                self.assertNotIn(dead, (route.prefill_worker, route.decode_worker))
        log = members.log("router")
        self.assertRegex(log, r"request retried: .* recoveries=1 .*why=")
        self.assertRegex(log, r"request done: .* attempts=2 recoveries=1 ")

    def test_decode_worker_killed_in_mid_stream_is_not_noticed(self):
        members = self.start({"p": "prefill", "d0": "decode", "d1": "decode"}, "--no-local-prefill")
        requests = draw_requests(prompt_max=200, tokens_min=300, tokens_max=500, seed=1)
        replies = self.run_both_ways(
            members, requests,
            lambda streams: self.kill_when(members, "d0", "streams", lambda: streams.n_begun() == N_STREAMS))
        self.expect_recovered(members, replies, "d0")
        members.wait_idle()
        members.close_clean(self)

    def test_combined_worker_killed_in_mid_stream_is_not_noticed(self):
        members = self.start({"b0": "both", "b1": "both"})
        requests = draw_requests(prompt_max=200, tokens_min=300, tokens_max=500, seed=2)
        replies = self.run_both_ways(
            members, requests,
            lambda streams: self.kill_when(members, "b0", "streams", lambda: streams.n_begun() == N_STREAMS))
        self.expect_recovered(members, replies, "b0")
        members.wait_idle()
        members.close_clean(self)

    def test_prefill_worker_killed_under_load_is_not_noticed(self):
        members = self.start({"p0": "prefill", "p1": "prefill", "d": "decode"}, "--no-local-prefill",
                             options=("--token-budget", "80", "--chunk", "16"))
        requests = draw_requests(prompt_max=500, tokens_min=50, tokens_max=200, seed=3)
        # Some have their first token then, and some have not.
        replies = self.run_both_ways(
            members, requests, lambda streams: self.kill_when(members, "p0", "a stream", lambda: streams.n_begun() > 0))
        self.assertGreater(max(reply[-1].finish.route.attempts for reply in replies), 1)
        members.wait_idle()
        members.close_clean(self)

    def test_streams_wait_for_another_decode_worker_and_go_on(self):
        members = self.start({"p": "prefill", "d0": "decode"}, "--no-local-prefill")

        def disturb(streams):
            self.kill_when(members, "d0", "streams", lambda: streams.n_begun() == N_STREAMS)
            wait_for("the loss of d0", lambda: set(members.workers()) == {"p"})
            members.worker("d1", "decode", "--threads", "1")
        replies = self.run_both_ways(members, draw_requests(100, 300, 500, seed=4), disturb)
        self.expect_recovered(members, replies, "d0")
        members.wait_idle()
        members.close_clean(self)

    def test_streams_that_break_off_too_often_end_with_a_clear_error(self):
        members = self.start({"p": "prefill", "d0": "decode", "d1": "decode"}, "--no-local-prefill", "--recoveries-max", "0")
        streams = Streams(members, draw_requests(100, 300, 500, seed=5))
        self.kill_when(members, "d0", "streams", lambda: streams.n_begun() == N_STREAMS)
        streams.join()
        errors = [error for error in streams.errors if error]
        self.assertGreater(len(errors), 0)
        for error in errors:
            self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE)
            self.assertRegex(error.details(), r"^the reply broke off after \d+ tokens and could not be resumed "
                             r"\(recoveries: 0, attempts: 1\); the last reason: decode worker 'd0': it is gone")
        self.assertEqual(len(tokens_of(generate(members.stub, pb.GenerateRequest(
            text="hi", sampling=pb.Sampling(max_tokens=9, ignore_eos=True))))), 9)
        members.wait_idle()
        members.close_clean(self)


if __name__ == "__main__":
    unittest.main()
