# SPDX-License-Identifier: Apache-2.0
"""Hostile input against real processes: damaged sessions on every port, requests that are too large or make no sense,
and model files that are not what they should be. Meanwhile another client's stream gets the right tokens, and at the end
nothing is left: blocks, descriptors, memory.

BATON_HOSTILE_SESSIONS: damaged sessions for each port (default 150); BATON_HOSTILE_SEED: of what they are (default 1).
BATON_MAKE_HOSTILE_GGUF names the program that writes the model files."""
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import prometheus  # noqa: E402
from hostile_bytes import Attack, Recorder, Unfinished, split  # noqa: E402
from members import (TIMEOUT_S, Members, baton, generate, n_descriptors, path_of, pb, rss_bytes, services,  # noqa: E402
                     tokens_of, wait_for)

SESSIONS = int(os.environ.get("BATON_HOSTILE_SESSIONS", "150"))
SEED = int(os.environ.get("BATON_HOSTILE_SEED", "1"))
SLOWNESS = int(os.environ.get("BATON_SLOWNESS", "2"))  # 1: a machine of its own; sanitizers take many times as much
GROWTH_BYTES_MAX = (48 << 20) * SLOWNESS  # of one process, over all attacks
MB = 1 << 20
UNFINISHED = 120  # of 4 MiB, the most that a message may have; the router buffers 256 MiB at a time
ANSWER_S = 5 * SLOWNESS


def ask(text="once upon a time", max_tokens=16, **sampling):
    return pb.GenerateRequest(text=text, sampling=pb.Sampling(max_tokens=max_tokens, ignore_eos=True, **sampling))


def channel_to(address, *options):
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1), *options])


def listening_ports(pid):
    """TCP ports that a process listens on."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="utf-8") as f:
            for fields in map(str.split, f.readlines()[1:]):
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


class Bystander:
    """A client whose stream runs on while others attack: the same request again and again, and the same tokens.

    `sends_again`: a call that was refused with UNAVAILABLE before its first message is made again, as clients may."""

    def __init__(self, address, sends_again=False):
        self.sends_again = sends_again
        self.channel = channel_to(address)
        self.stub = services.GenerationStub(self.channel)
        self.request = ask("who goes there", 64, temperature=1.0, seed=7)
        self.expected = tokens_of(generate(self.stub, self.request))
        self.streams = 0
        self.failures = []
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.done.is_set() and not self.failures:
            replies = []
            try:
                for reply in self.stub.Generate(self.request, timeout=TIMEOUT_S):
                    replies.append(reply)
                tokens = tokens_of(replies)
                if tokens != self.expected:
                    self.failures.append(f"stream {self.streams}: {tokens} instead of {self.expected}")
                self.streams += 1
            except grpc.RpcError as error:
                if not replies and self.sends_again and error.code() == grpc.StatusCode.UNAVAILABLE:
                    self.done.wait(0.05)
                else:
                    self.failures.append(f"stream {self.streams}: {error.code()} {error.details()}")

    def close(self):
        self.done.set()
        self.thread.join(TIMEOUT_S)
        self.channel.close()


class DamagedSessionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.members = Members("odd", "--no-local-prefill", "--log-level", "info")
        cls.addClassCleanup(cls.members.close)
        folder = cls.members.folder
        socket_path = os.path.join(folder, "kv.sock")
        cls.members.worker("p", "prefill", "--threads", "1", "--kv-socket", socket_path, "--kv-advertise-host", "127.0.0.2")
        for name, transport in (("tcp", "tcp"), ("shm", "shm")):
            cls.members.worker(name, "decode", "--threads", "1", "--kv-transport", transport)
        cls.members.wait_ready()
        # What decode workers pull goes through recorders: over tcp by another loopback address with the same port,
        # over the unix socket by a file that takes its place.
        pid = cls.members.processes["p"].pid
        admin = split(cls.members.admin("p")[len("http://"):])[1]
        (kv_port,) = listening_ports(pid) - {admin}
        cls.kv_tcp = ("127.0.0.1", kv_port)
        cls.kv_unix = socket_path + ".real"
        os.rename(socket_path, cls.kv_unix)
        cls.recorders = [Recorder(cls.kv_tcp, ("127.0.0.2", kv_port)), Recorder(cls.kv_unix, socket_path)]
        for recorder in cls.recorders:
            cls.addClassCleanup(recorder.close)
        wait_for("pulls over both transports", cls.pull)
        cls.bystander = Bystander(cls.members.address)
        cls.addClassCleanup(cls.bystander.close)
        cls.warm_up()

    @classmethod
    def pull(cls):
        prompts = [ask("p" * 40 + str(time.monotonic()) + str(i), 4) for i in range(6)]
        calls = [cls.members.stub.Generate(prompt, timeout=TIMEOUT_S) for prompt in prompts]
        for call in calls:
            list(call)
        return all(any(len(said) > 300 for said in recorder.sessions) for recorder in cls.recorders)

    @classmethod
    def warm_up(cls):
        """Each process has then taken once what its libraries take once; descriptors and memory are noted."""
        Attack(split(cls.members.address), cls.record_client()).run(40)
        pids = {name: process.pid for name, process in cls.members.processes.items()}
        cls.before = {name: (n_descriptors(pid), rss_bytes(pid)) for name, pid in pids.items()}

    @classmethod
    def record_client(cls):
        with Recorder(split(cls.members.address)) as recorder:
            for talk in cls.talks():
                channel = channel_to(recorder.address)
                talk(channel)
                channel.close()
        return recorder.sessions

    @staticmethod
    def talks():
        """What a stock client may say, one connection each."""
        def stub(channel):
            return services.GenerationStub(channel)

        chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="h\u00e9llo <|im_end|>")])

        def cancelled(channel):
            call = stub(channel).Generate(ask(max_tokens=500), timeout=TIMEOUT_S)
            next(call)
            call.cancel()

        def questions(channel):
            stub(channel).Tokenize(pb.TokenizeRequest(chat=chat), timeout=TIMEOUT_S)
            stub(channel).Detokenize(pb.DetokenizeRequest(ids=[104, 105]), timeout=TIMEOUT_S)
            stub(channel).ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S)
            stub(channel).GetClusterStatus(pb.GetClusterStatusRequest(), timeout=TIMEOUT_S)

        return [
            lambda channel: generate(stub(channel), ask("abc", 8, logprobs=True, n_top_logprobs=2, stop=["\u00e9"],
                                                        logit_bias={5: -2.0}, stop_token_ids=[3])),
            lambda channel: generate(stub(channel), pb.GenerateRequest(chat=chat, sampling=pb.Sampling(max_tokens=4))),
            lambda channel: generate(stub(channel), pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=range(100)), sampling=pb.Sampling(max_tokens=2), session_id="s")),
            questions,
            cancelled,
            lambda channel: health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S),
        ]

    def attack(self, target, sessions, n=SESSIONS, n_threads=8):
        self.assertTrue(sessions)
        streams = self.bystander.streams
        attack = Attack(target, sessions, SEED)
        seconds = attack.run(n, n_threads)
        print(f"{n} damaged sessions in {seconds:.1f} s, {attack.answered} answers, "
              f"{self.bystander.streams - streams} streams beside them", file=sys.stderr)
        self.assertEqual(attack.failures, [])
        wait_for("another stream", lambda: self.bystander.streams > streams + 1 or self.bystander.failures)
        self.assertEqual(self.bystander.failures, [])
        for name, process in self.members.processes.items():
            self.assertIsNone(process.poll(), f"{name} ended:\n{self.members.log(name)[-4000:]}")

    def test_damaged_sessions_of_clients_harm_nobody(self):
        self.attack(split(self.members.address), self.record_client())

    def test_damaged_sessions_of_workers_harm_nobody(self):
        with Recorder(split(self.members.attach)) as recorder:
            self.members.start("x", "worker", "--name", "x", "--role", "both", "--threads", "1", "--admin", "127.0.0.1:0",
                               "--model", self.members.model, "--router", recorder.address, "--kv-pool-bytes", "16M")
            wait_for("the recorded worker", lambda: "x" in self.members.workers())
            for i in range(8):  # some of them go to it
                generate(self.members.stub, ask("x" * (i + 1), 2))
            for question in ("explain", "abc"), ("drain", "nobody"):  # of operators, who come to the same port
                subprocess.run([baton(), *question, "--attach", recorder.address], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
            process = self.members.processes.pop("x")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(TIMEOUT_S), 0)
        self.attack(split(self.members.attach), recorder.sessions)

    def test_damaged_pulls_over_tcp_harm_nobody(self):
        self.attack(self.kv_tcp, [bytes(said) for said in self.recorders[0].sessions if said])

    def test_damaged_pulls_over_the_unix_socket_harm_nobody(self):
        self.attack(self.kv_unix, [bytes(said) for said in self.recorders[1].sessions if said])

    def test_damaged_questions_to_the_admin_ports_harm_nobody(self):
        for name in ("router", "p", "tcp"):
            admin = split(self.members.admin(name)[len("http://"):])
            with Recorder(admin) as recorder:
                for method, path in (("GET", "/metrics"), ("HEAD", "/metrics"), ("GET", "/healthz"), ("GET", "/readyz?x=1"),
                                     ("POST", "/metrics"), ("GET", "/none")):
                    client = http.client.HTTPConnection(*split(recorder.address), timeout=TIMEOUT_S)
                    client.request(method, path, body=b"x" * 100 if method == "POST" else None,
                                   headers={"authorization": "Bearer x"})
                    client.getresponse().read()
                    client.close()
            self.attack(admin, recorder.sessions, SESSIONS, 24)

    def test_damaged_requests_to_the_http_door_harm_nobody(self):
        door = split(self.members.http)
        with Recorder(door) as recorder:
            for method, path, body in (
                    ("POST", "/v1/completions", {"prompt": "once", "max_tokens": 5, "stop": ["\u00e9"], "logprobs": 2}),
                    ("POST", "/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 3, "stream": True,
                                                 "stream_options": {"include_usage": True}}),
                    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "h\u00e9"}], "max_tokens": 4}),
                    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "stream": True, "n": 2,
                                                      "max_tokens": 9, "logit_bias": {"5": -1}}),
                    ("GET", "/v1/models", None), ("GET", "/v1/models/odd", None), ("GET", "/healthz", None)):
                client = http.client.HTTPConnection(*split(recorder.address), timeout=TIMEOUT_S)
                client.request(method, path, body=json.dumps(body) if body else None,
                               headers={"content-type": "application/json", "authorization": "Bearer x"})
                client.getresponse().read()
                client.close()
        self.attack(door, recorder.sessions, SESSIONS, 24)

    @classmethod
    def tearDownClass(cls):
        """After all of it: blocks, descriptors and memory are home, and the metrics read as before."""
        case = unittest.TestCase()
        cls.bystander.close()
        case.assertEqual(cls.bystander.failures, [])
        cls.members.wait_idle()

        def quiet():
            return all(n_descriptors(cls.members.processes[name].pid) <= n_fds for name, (n_fds, _) in cls.before.items())
        wait_for("descriptors as at the start", quiet, 20)
        for name, (_, rss) in cls.before.items():
            grown = rss_bytes(cls.members.processes[name].pid) - rss
            print(f"{name}: memory grew by {grown / MB:.1f} MiB", file=sys.stderr)
            case.assertLess(grown, GROWTH_BYTES_MAX, name)
            client = http.client.HTTPConnection(*split(cls.members.admin(name)[len("http://"):]), timeout=TIMEOUT_S)
            client.request("GET", "/metrics")
            prometheus.parse(client.getresponse().read().decode())
            client.close()
        cls.members.close_clean(case)


def field(number, wire_type, *content):
    """A protobuf field by hand: wire type 2 takes bytes, 0 a number, 5 four bytes."""
    def varint(value):
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes(out) + bytes([value])

    out = varint(number << 3 | wire_type)
    for part in content:
        out += varint(part) if wire_type == 0 else (varint(len(part)) + part) if wire_type == 2 else part
    return out


class MalformedRequestTest(unittest.TestCase):
    """Each is refused with a text within seconds, and the next request is served as if nothing had been."""

    @classmethod
    def setUpClass(cls):
        cls.members = Members("odd")
        cls.addClassCleanup(cls.members.close)
        cls.members.worker("w", "both", "--threads", "1")
        cls.members.wait_ready()
        cls.channel = channel_to(cls.members.address, ("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 1 << 30))
        cls.addClassCleanup(cls.channel.close)
        cls.raw = cls.channel.unary_stream("/baton.v1.Generation/Generate")
        cls.good = ask("who goes there", 16)
        cls.expected = tokens_of(generate(cls.members.stub, cls.good))

    @classmethod
    def tearDownClass(cls):
        cls.members.wait_idle()
        cls.members.close_clean(unittest.TestCase())

    def refuse(self, bytes_, *codes, says="", metadata=()):
        began = time.monotonic()
        with self.assertRaises(grpc.RpcError) as raised:
            list(self.raw(bytes_, timeout=TIMEOUT_S, metadata=metadata))
        self.assertLess(time.monotonic() - began, ANSWER_S)
        self.assertIn(raised.exception.code(), codes, raised.exception.details())
        self.assertNotEqual(raised.exception.details(), "")
        self.assertIn(says, raised.exception.details())
        self.assertEqual(tokens_of(generate(self.members.stub, self.good)), self.expected)

    def invalid(self, request, says):
        bytes_ = request if isinstance(request, bytes) else request.SerializeToString()
        self.refuse(bytes_, grpc.StatusCode.INVALID_ARGUMENT, says=says)

    def test_message_of_100_megabytes_is_refused_and_not_kept(self):
        before = rss_bytes(self.members.processes["router"].pid)
        self.refuse(field(2, 2, b"x" * (100 * MB)), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertLess(rss_bytes(self.members.processes["router"].pid) - before, 160 * MB * SLOWNESS)

    def test_unfinished_messages_take_bounded_memory_and_disturb_nobody(self):
        before = rss_bytes(self.members.processes["router"].pid)
        bystander = Bystander(self.members.address, sends_again=True)  # between two streams it may lose its connection
        unfinished = [Unfinished(self.members.address, "/baton.v1.Generation/Generate", 4 * MB) for _ in range(UNFINISHED)]
        grown = rss_bytes(self.members.processes["router"].pid) - before
        taken = sum(each.taken for each in unfinished)
        streams = bystander.streams
        wait_for("another stream", lambda: bystander.streams > streams + 1 or bystander.failures)
        for each in unfinished:
            each.close()
        bystander.close()
        print(f"{taken // MB} MiB of unfinished messages were taken, memory grew by {grown // MB} MiB, "
              f"{sum(each.ended for each in unfinished)} were ended", file=sys.stderr)
        self.assertEqual(bystander.failures, [])
        self.assertLess(grown, 320 * MB * max(1, SLOWNESS // 2))

    def test_metadata_of_a_megabyte_is_refused(self):
        codes = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL
        self.refuse(self.good.SerializeToString(), *codes, metadata=(("x-much", "m" * MB),))
        self.refuse(self.good.SerializeToString(), *codes, metadata=tuple((f"x-{i}", "m" * 50) for i in range(2000)))

    def test_bytes_that_are_no_message_are_refused(self):
        for bytes_ in (b"\xff", b"\x0a\x7f", b"\x12\xff\xff\xff\xff\x0f", b"\x0b\x0c", b"\x80" * 100,
                       field(20, 2, b"\xff" * 40), field(3, 2, field(1, 2, b"\x80")), field(4, 2, b"\x0a\x05")):
            self.invalid(bytes_, "")

    def test_text_that_is_no_utf8_is_refused_by_field(self):
        for bad in (b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"):
            self.invalid(field(2, 2, bad), "text")
        self.invalid(field(2, 2, b"a\0b"), "NUL")

    def test_numbers_that_make_no_sense_are_refused_by_field(self):
        nan, infinite = float("nan"), float("inf")
        for name, values in {"temperature": (-1, nan, infinite, 1e9), "top_p": (-0.1, nan, 1.5, -infinite),
                             "min_p": (-1, nan, 1, infinite), "repetition_penalty": (-1, nan, 3, infinite),
                             "presence_penalty": (-3, nan, infinite), "frequency_penalty": (3, nan, -infinite),
                             "n_top_logprobs": (21, 2**32 - 1)}.items():
            for value in values:
                sampling = {name: value}
                if name == "n_top_logprobs":
                    sampling["logprobs"] = True
                self.invalid(ask(**sampling), name)
        for value in (nan, infinite, -infinite, 101):
            self.invalid(ask(logit_bias={5: value}), "logit_bias")
        for name in ("ttft_target_ms", "tpot_target_ms"):
            for value in (nan, -1, infinite):
                request = ask()
                setattr(request, name, value)
                self.invalid(request, name)

    def test_lists_that_are_too_long_are_refused(self):
        self.invalid(ask(stop=["x"] * 1000), "stop")
        self.invalid(ask(stop=["x" * MB]), "stop")
        self.invalid(ask(stop_token_ids=range(256)), "stop_token_ids")
        self.invalid(ask(logit_bias={i: 1.0 for i in range(301)}), "logit_bias")
        self.invalid(ask(stop_token_ids=[2**32 - 1]), "stop_token_ids")
        self.invalid(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[2**32 - 1])), "")
        self.invalid(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[259])), "")
        self.invalid(pb.GenerateRequest(token_ids=pb.TokenIds()), "")

    def test_prompts_of_megabytes_are_refused_in_time(self):
        codes = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE
        for text in ("a" * 4000000, " " * 4000000, "\n" * 4000000, "\u0301" * 2000000, "a1 " * 1300000):
            self.refuse(ask(text).SerializeToString(), *codes)
        empty = field(4, 2, field(1, 2, b"") * 1500000)
        self.refuse(empty, *codes)
        self.refuse(field(2, 2, b"a" * 10) * 300000 + field(20, 2, field(16, 2, b"") * 1000000), *codes)
        ids = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[7] * 2000000))
        self.refuse(ids.SerializeToString(), *codes)

    def test_unknown_methods_and_numbers_beyond_every_limit_are_answered(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.channel.unary_unary("/baton.v1.Generation/" + "x" * 4000)(b"", timeout=TIMEOUT_S)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        for most in (2**32 - 1, 2**31):
            replies = generate(self.members.stub, pb.GenerateRequest(text="ab", sampling=pb.Sampling(
                max_tokens=most, top_k=2**32 - 1, min_tokens=0, stop=["\0x"[1:]])), timeout=TIMEOUT_S)
            self.assertLessEqual(len(tokens_of(replies)), 1024)


    def http(self, body, path="/v1/completions", headers=(), method="POST"):
        """(code, text) of a request to the HTTP door, whatever is in it; the next one is served."""
        began = time.monotonic()
        client = http.client.HTTPConnection(*split(self.members.http), timeout=TIMEOUT_S)
        try:
            client.putrequest(method, path)
            client.putheader("content-length", str(len(body)))
            for name, value in headers:
                client.putheader(name, value)
            client.endheaders()
            try:
                client.send(body)
            except OSError:
                pass  # the door had heard enough
            reply = client.getresponse()
            code, text = reply.status, reply.read()
        except (ConnectionError, http.client.RemoteDisconnected, http.client.BadStatusLine):
            code, text = 0, b""
        finally:
            client.close()
        self.assertLess(time.monotonic() - began, ANSWER_S)
        self.assertEqual(tokens_of(generate(self.members.stub, self.good)), self.expected)
        return code, text

    def test_bodies_that_make_no_sense_are_refused_by_the_http_door(self):
        deep = 100000
        for body in (b"", b"{", b"null", b"[]", b"7", b"\xff\xfe", b"{\"prompt\":\"\xff\"}", b"{\"prompt\":\"a\",\"prompt\":\"b\"}",
                     b"[" * deep, b"{\"a\":" * deep, b"{\"prompt\":" + b"[" * deep + b"]" * deep + b"}",
                     b"{\"prompt\":\"\\ud800\"}", b"{\"prompt\":[1,-1]}", b"{\"prompt\":[1.5]}",
                     b"{\"prompt\":[99999999999999999999]}", b"{\"prompt\":\"a\",\"max_tokens\":-1}",
                     b"{\"prompt\":\"a\",\"max_tokens\":1e99}", b"{\"prompt\":\"a\",\"temperature\":NaN}",
                     b"{\"prompt\":\"a\",\"temperature\":-1}", b"{\"prompt\":\"a\",\"temperature\":1e999}",
                     b"{\"prompt\":\"a\",\"top_p\":2}", b"{\"prompt\":\"a\",\"n\":100000}", b"{\"prompt\":\"a\",\"stop\":[[]]}",
                     b"{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", b"{\"prompt\":\"a\",\"logit_bias\":{\"1\":1e9}}"):
            code, text = self.http(body)
            self.assertEqual(code, 400, (body[:80], text[:300]))
            self.assertTrue(json.loads(text)["error"]["message"], body[:80])

    def test_what_is_too_large_is_refused_by_the_http_door(self):
        before = rss_bytes(self.members.processes["router"].pid)
        for code, _ in (self.http(b"{\"prompt\":\"" + b"a" * (100 * MB) + b"\"}"),
                        self.http(b"{}", headers=(("x-much", "m" * MB),)),
                        self.http(b"{}", headers=[(f"x-{i}", "m" * 40) for i in range(5000)]),
                        self.http(b"{}", path="/" + "p" * MB)):
            self.assertIn(code, (0, 400, 413, 414, 431))
        code, text = self.http(b"{\"prompt\":\"" + b"a" * (3 * MB) + b"\"}")
        self.assertIn(code, (400, 413), text[:300])
        self.assertLess(rss_bytes(self.members.processes["router"].pid) - before, 64 * MB * SLOWNESS)


class HostileModelTest(unittest.TestCase):
    """Real processes with model files that are not what they should be: one line says why, and the exit code is no signal."""

    def outcome(self, folder, title, *arguments):
        """Exit code and output of a process that ends by itself, or that serves and is then told to end."""
        log = os.path.join(folder, "log")

        def read():
            with open(log, encoding="utf-8", errors="replace") as f:
                return f.read()

        with open(log, "wb") as output:
            process = subprocess.Popen([baton(), *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_for(f"an answer to '{title}'", lambda: process.poll() is not None or " started: " in read(), ANSWER_S)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            return process.wait(ANSWER_S), read()
        finally:
            process.kill()
            process.wait()

    def test_workers_and_routers_refuse_hostile_models_with_the_cause(self):
        make = path_of("BATON_MAKE_HOSTILE_GGUF", ".bazel-bin/tests/support/make_hostile_gguf")
        step = os.environ.get("BATON_HOSTILE_MODEL_STEP", "11")
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run([make, folder, step], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
            for path, title, says in (line.split("\t") for line in made.splitlines()):
                if says == "-" or "template" in title:
                    continue  # it loads, and without its template a model serves texts: see gguf_hostile_test
                common = ("--model", path, "--admin", "127.0.0.1:0")
                code, output = self.outcome(folder, title, "worker", *common, "--router", "127.0.0.1:1",
                                            "--kv-pool-bytes", "1M", "--threads", "1")
                router_code, router_output = self.outcome(folder, title, "router", *common, "--listen", "127.0.0.1:0",
                                                          "--attach", "127.0.0.1:0")
                self.assertIn(code, (1, 2), f"{title}: {output}")
                self.assertIn("baton worker: ", output)
                # Weights are the worker's alone: the router may serve.
                self.assertIn(router_code, (0, 1, 2, -signal.SIGTERM), f"{title}: {router_output}")
                self.assertIn(says, output + router_output)
                for text in (output, router_output):
                    self.assertNotIn("\033", text)
                    self.assertNotRegex(text, "Sanitizer|runtime error|assertion failed")


if __name__ == "__main__":
    unittest.main()
