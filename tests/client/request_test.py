# SPDX-License-Identifier: Apache-2.0
"""What a request may ask and what it gets, through a router, a prefill and a decode worker without local prefill, on a
random-weight model whose tokens are bytes."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import prometheus  # noqa: E402
from members import TIMEOUT_S, Members, baton, generate, pb, text_of, tokens_of, wait_for  # noqa: E402

CONTEXT = 1024  # of the tiny models
EOS = 258

members = None


def setUpModule():
    global members
    members = Members("odd", "--no-local-prefill")
    members.worker("p", "prefill", "--threads", "1")
    members.worker("d", "decode", "--threads", "1")
    members.wait_ready()


def tearDownModule():
    members.close_clean(unittest.TestCase())


def ask(text="once upon a time", max_tokens=16, ignore_eos=True, **sampling):
    return pb.GenerateRequest(text=text, sampling=pb.Sampling(max_tokens=max_tokens, ignore_eos=ignore_eos, **sampling))


class SamplingTest(unittest.TestCase):
    def generate(self, request, **options):
        return generate(members.stub, request, **options)

    def test_drawn_seed_is_told_and_gives_the_same_tokens_again(self):
        first = self.generate(ask(temperature=1.0))
        again = self.generate(ask(temperature=1.0, seed=first[0].start.seed))
        self.assertEqual(tokens_of(first), tokens_of(again))
        self.assertNotEqual(first[0].start.seed, self.generate(ask(temperature=1.0))[0].start.seed)

    def test_seed_decides_the_tokens(self):
        outputs = {tuple(tokens_of(self.generate(ask(temperature=1.0, seed=seed)))) for seed in range(8)}
        self.assertEqual(len(outputs), 8)

    def test_request_id_is_echoed_or_made(self):
        call = members.stub.Generate(ask(max_tokens=1), timeout=TIMEOUT_S, metadata=(("x-request-id", "abc-1.2_3"),))
        start = list(call)[0].start
        self.assertEqual(start.request_id, "abc-1.2_3")
        self.assertEqual(dict(call.initial_metadata())["x-request-id"], "abc-1.2_3")
        call = members.stub.Generate(ask(max_tokens=1), timeout=TIMEOUT_S)
        start = list(call)[0].start
        self.assertNotEqual(start.request_id, "")
        self.assertEqual(dict(call.initial_metadata())["x-request-id"], start.request_id)

    def test_echo_scores_the_prompt_before_any_output(self):
        for max_tokens in (0, 1, 20):
            replies = self.generate(ask("hello there", max_tokens, echo=True, logprobs=True, n_top_logprobs=2))
            prompt = [reply for reply in replies if reply.is_prompt]
            self.assertEqual(bytes(t for reply in prompt for t in reply.token_ids), b"hello there")
            self.assertEqual("".join(reply.text for reply in prompt), "hello there")
            scores = [p for reply in prompt for p in reply.logprobs]
            self.assertFalse(scores[0].HasField("logprob"))
            for score in scores[1:]:
                self.assertLess(score.logprob, 0)
                self.assertEqual(len(score.top), 2)
                self.assertGreaterEqual(score.top[0].logprob, score.top[1].logprob)
            self.assertEqual(len(tokens_of(replies)), max_tokens)
            with_tokens = [reply.is_prompt for reply in replies if reply.token_ids]
            self.assertEqual(with_tokens, sorted(with_tokens, reverse=True))

    def test_echo_without_logprobs_gives_the_prompts_text(self):
        replies = self.generate(ask("hello there", 3, echo=True))
        self.assertEqual("".join(reply.text for reply in replies if reply.is_prompt), "hello there")
        self.assertEqual(len(tokens_of(replies)), 3)

    def test_logprobs_do_not_change_tokens_and_the_greedy_one_is_the_top(self):
        plain = tokens_of(self.generate(ask(max_tokens=20)))
        replies = self.generate(ask(max_tokens=20, logprobs=True, n_top_logprobs=3))
        self.assertEqual(tokens_of(replies), plain)
        for token, p in zip(plain, [p for reply in replies for p in reply.logprobs]):
            self.assertEqual(p.token_id, token)
            self.assertEqual(p.top[0].token_id, token)
            self.assertEqual(p.top[0].logprob, p.logprob)
            if token < 256:
                self.assertEqual(p.piece, bytes([token]))

    def test_stop_string_ends_the_text_before_it(self):
        whole = text_of(self.generate(ask(max_tokens=60)))
        stop = next(whole[i:i + 3] for i in range(10, len(whole)) if whole[i:i + 3].isprintable())
        at = whole.index(stop)
        replies = self.generate(ask(max_tokens=60, stop=["not in there", stop]))
        self.assertEqual(text_of(replies), whole[:at])
        self.assertEqual(replies[-1].finish.reason, pb.FINISH_REASON_STOP)
        self.assertEqual(replies[-1].finish.stop, stop)
        replies = self.generate(ask(max_tokens=60, stop=[stop], include_stop=True))
        self.assertEqual(text_of(replies), whole[:at] + stop)

    def test_stop_token_ends_the_tokens(self):
        tokens = tokens_of(self.generate(ask(max_tokens=30)))
        stop = tokens[7]
        replies = self.generate(ask(max_tokens=30, stop_token_ids=[stop]))
        self.assertEqual(tokens_of(replies), tokens[:tokens.index(stop) + 1])
        self.assertEqual(replies[-1].finish.stop_token_id, stop)
        self.assertEqual(replies[-1].finish.reason, pb.FINISH_REASON_STOP)

    def test_min_tokens_holds_the_end_back(self):
        bias = {EOS: 100.0}
        self.assertEqual(tokens_of(self.generate(ask(ignore_eos=False, logit_bias=bias))), [EOS])
        replies = self.generate(ask(ignore_eos=False, logit_bias=bias, min_tokens=5))
        self.assertEqual(len(tokens_of(replies)), 6)
        self.assertEqual(tokens_of(replies)[-1], EOS)
        self.assertEqual(replies[-1].finish.reason, pb.FINISH_REASON_STOP)

    def test_logit_bias_decides(self):
        self.assertEqual(text_of(self.generate(ask(max_tokens=8, logit_bias={ord("z"): 100.0}))), "z" * 8)

    def test_max_tokens_ends_with_length(self):
        for n in (1, 2, 17):
            replies = self.generate(ask(max_tokens=n))
            self.assertEqual(len(tokens_of(replies)), n)
            self.assertEqual(replies[-1].finish.reason, pb.FINISH_REASON_LENGTH)
            self.assertEqual(replies[-1].finish.usage.generated_tokens, n)

    def test_context_is_the_end_without_max_tokens(self):
        request = ask("x" * (CONTEXT - 20))
        request.sampling.ClearField("max_tokens")
        replies = self.generate(request)
        self.assertEqual(replies[-1].finish.reason, pb.FINISH_REASON_LENGTH)
        self.assertIn(len(tokens_of(replies)), (20, 21))

    def test_penalties_change_tokens(self):
        plain = tokens_of(self.generate(ask(max_tokens=40)))
        for penalty in ({"repetition_penalty": 1.8}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
            self.assertNotEqual(tokens_of(self.generate(ask(max_tokens=40, **penalty))), plain, penalty)

    def test_salts_share_no_prefix(self):
        prompt = "a prompt of more than two blocks, so that there is something to share"
        cached = []
        for salt in ("one", "one", "two"):
            request = ask(prompt, 2)
            request.cache_salt = salt
            cached.append(self.generate(request)[-1].finish.usage.cached_tokens)
        self.assertEqual(cached, [0, len(prompt) // 16 * 16, 0])


class RefusalTest(unittest.TestCase):
    def refuse(self, request, code, *words):
        with self.assertRaises(grpc.RpcError) as caught:
            generate(members.stub, request)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        for word in words:
            self.assertIn(word, caught.exception.details())

    def test_wrong_field_is_named(self):
        cases = {
            "temperature": [-1.0, 2.5, float("nan"), float("inf")], "top_p": [-0.1, 1.1], "min_p": [-0.1, 1.0],
            "repetition_penalty": [-1.0, 2.5], "presence_penalty": [-3.0], "frequency_penalty": [2.5],
            "n_top_logprobs": [21], "stop": [["x"] * 17, [""], ["x" * 257]], "stop_token_ids": [[259]],
            "logit_bias": [{259: 1.0}, {1: 101.0}],
        }
        for field, values in cases.items():
            for value in values:
                with self.subTest(f"{field}={value}"):
                    options = {field: value}
                    if field == "n_top_logprobs":
                        options["logprobs"] = True
                    self.refuse(ask(**options), grpc.StatusCode.INVALID_ARGUMENT, field)

    def test_no_prompt_is_refused(self):
        self.refuse(pb.GenerateRequest(), grpc.StatusCode.INVALID_ARGUMENT, "prompt")
        self.refuse(pb.GenerateRequest(token_ids=pb.TokenIds()), grpc.StatusCode.INVALID_ARGUMENT)
        self.refuse(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 259])), grpc.StatusCode.INVALID_ARGUMENT, "259")
        self.refuse(pb.GenerateRequest(chat=pb.Chat()), grpc.StatusCode.INVALID_ARGUMENT)

    def test_prompt_longer_than_the_context_is_refused(self):
        self.refuse(ask("x" * (CONTEXT + 1)), grpc.StatusCode.INVALID_ARGUMENT, str(CONTEXT))

    def test_request_id_of_strange_letters_is_refused(self):
        with self.assertRaises(grpc.RpcError) as caught:
            generate(members.stub, ask(), metadata=(("x-request-id", "a b"),))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("x-request-id", caught.exception.details())

    def test_invalid_utf8_is_refused_with_its_offset(self):
        call = members.channel.unary_stream("/baton.v1.Generation/Generate")
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(b"\x12\x05ab\xffcd", timeout=TIMEOUT_S))  # field 2, text
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("2", caught.exception.details())

    def test_garbage_is_refused(self):
        call = members.channel.unary_stream("/baton.v1.Generation/Generate")
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(b"\xff\xff\xff\xff", timeout=TIMEOUT_S))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_unknown_method_is_unimplemented(self):
        with self.assertRaises(grpc.RpcError) as caught:
            members.channel.unary_unary("/baton.v1.Generation/Nothing")(b"", timeout=TIMEOUT_S)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)


class EndTest(unittest.TestCase):
    def test_deadline_ends_the_request_and_frees_its_blocks(self):
        for i in range(20):  # it may be through before it is stopped
            call = members.stub.Generate(ask("x" * 30 + str(i), max_tokens=900), timeout=1)
            try:
                next(call)
                members.signal("d", signal.SIGSTOP)
                list(call)
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
                break
            finally:
                members.signal("d", signal.SIGCONT)
        else:
            self.fail("no deadline struck")
        members.wait_idle()

    def test_cancel_frees_the_blocks(self):
        calls = [members.stub.Generate(ask("y" * 30 + str(i), max_tokens=900), timeout=TIMEOUT_S) for i in range(4)]
        for call in calls:
            next(call)
        wait_for("busy blocks on the decode worker", lambda: members.workers()["d"].requests_running > 0)
        for call in calls:
            call.cancel()
        workers = members.wait_idle()
        self.assertEqual(workers["d"].decode_tokens, members.workers()["d"].decode_tokens)
        self.assertGreaterEqual(members.status().router.requests_cancelled, 4)

    def test_vanished_client_frees_the_blocks(self):
        channel = grpc.insecure_channel(members.address, options=(("grpc.use_local_subchannel_pool", 1),))
        call = channel.unary_stream("/baton.v1.Generation/Generate", request_serializer=lambda r: r.SerializeToString())(
            ask("z" * 40, max_tokens=900), timeout=TIMEOUT_S)
        next(call)
        channel.close()
        members.wait_idle()

    def test_split_is_real(self):
        generate(members.stub, ask("who computes this prompt, and who answers it?", 20))
        workers = members.wait_idle()
        self.assertGreater(workers["p"].prefill_tokens, 0)
        self.assertEqual(workers["p"].decode_tokens, 0)
        self.assertEqual(workers["d"].prefill_tokens, 0)
        self.assertGreater(workers["d"].decode_tokens, 0)
        self.assertGreater(workers["d"].blocks_pulled, 0)


class ServiceTest(unittest.TestCase):
    def test_health_checks_and_watches(self):
        stub = health_pb2_grpc.HealthStub(members.channel)
        for service in ("", "baton.v1.Generation"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
            self.assertEqual(reply.status, health_pb2.HealthCheckResponse.SERVING)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVING)
        watch.cancel()
        with self.assertRaises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="no.such"), timeout=TIMEOUT_S)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def reflect(self, version, request):
        """One question over ServerReflection of that version; their messages are alike."""
        call = members.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
        return next(call(iter([request]), timeout=TIMEOUT_S))

    def test_reflection_of_both_versions_is_enough_to_make_a_call(self):
        for version in ("v1", "v1alpha"):
            with self.subTest(version):
                reply = self.reflect(version, reflection_pb2.ServerReflectionRequest(list_services=""))
                names = {service.name for service in reply.list_services_response.service}
                self.assertLessEqual({"baton.v1.Generation", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                                      "grpc.reflection.v1alpha.ServerReflection"}, names)
                reply = self.reflect(version, reflection_pb2.ServerReflectionRequest(
                    file_containing_symbol="baton.v1.Generation"))
                pool = DescriptorPool()
                for serialized in reply.file_descriptor_response.file_descriptor_proto:
                    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(serialized))
                method = pool.FindServiceByName("baton.v1.Generation").FindMethodByName("Generate")
                request = GetMessageClass(method.input_type)(text="hi")
                request.sampling.max_tokens = 4
                call = members.channel.unary_stream(
                    "/baton.v1.Generation/Generate",
                    request_serializer=GetMessageClass(method.input_type).SerializeToString,
                    response_deserializer=GetMessageClass(method.output_type).FromString)
                replies = list(call(request, timeout=TIMEOUT_S))
                self.assertEqual(replies[-1].finish.usage.generated_tokens, 4)

    def test_reflection_of_an_unknown_symbol_says_not_found(self):
        reply = self.reflect("v1", reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.Such"))
        self.assertEqual(reply.error_response.error_code, grpc.StatusCode.NOT_FOUND.value[0])

    def test_status_tells_members_and_limits(self):
        members.wait_idle()
        status = members.status()
        self.assertTrue(status.router.ready)
        self.assertGreater(status.router.requests_max, 0)
        self.assertEqual({worker.name for worker in status.workers}, {"p", "d"})
        for worker in status.workers:
            self.assertEqual(worker.state, pb.WORKER_STATE_READY)
            self.assertEqual(worker.block_tokens, 16)
            self.assertEqual(worker.blocks_total, worker.blocks_free + worker.blocks_cached)
            self.assertNotEqual(worker.kernels, "")
        self.assertEqual(len({worker.numerics_id for worker in status.workers}), 1)
        self.assertEqual(len({worker.incarnation for worker in status.workers}), 2)

    def test_status_command_prints_the_same_as_json(self):
        done = subprocess.run([baton(), "status", "--json", "--address", members.address], capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({worker["name"] for worker in json.loads(done.stdout)["workers"]}, {"p", "d"})

    def fetch(self, name, path):
        with urllib.request.urlopen(members.admin(name) + path, timeout=TIMEOUT_S) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()

    def test_metrics_parse_and_agree_with_the_status(self):
        generate(members.stub, ask("count me", 5))
        members.wait_idle()
        wanted = {
            "router": ["baton_router_requests_total", "baton_router_ttft_seconds_bucket"],
            "p": ["baton_worker_tokens_total", "baton_worker_blocks", "baton_worker_step_seconds_bucket"],
            "d": ["baton_worker_pulls_total", "baton_worker_pulled_blocks_total", "baton_worker_preemptions_total"],
        }
        for name, series in wanted.items():
            with self.subTest(name):
                status, content_type, text = self.fetch(name, "/metrics")
                self.assertEqual(status, 200)
                self.assertTrue(content_type.startswith("text/plain"), content_type)
                samples = prometheus.parse(text)
                names = {sample for sample, _ in samples}
                for one in series:
                    self.assertIn(one, names)
                if name == "d":  # the status is as old as the worker's last report
                    decoded = samples["baton_worker_tokens_total", (("kind", "decode"),)]
                    wait_for("a status that agrees", lambda: members.workers()["d"].decode_tokens == decoded)

    def test_health_pages_say_ready(self):
        for name in ("router", "p", "d"):
            self.assertEqual(self.fetch(name, "/healthz")[0], 200)
            self.assertEqual(self.fetch(name, "/readyz")[0], 200)


if __name__ == "__main__":
    unittest.main()
