# SPDX-License-Identifier: Apache-2.0
"""Closed doors: who has no key, no certificate or another cluster key gets a refusal and learns nothing; tenants see
nothing of each other's cache; an address that others reach is not open by mistake."""
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster  # noqa: E402
from members import ROOT, TIMEOUT_S, Members, baton, generate, pb, services, tiny_model, wait_for  # noqa: E402

ALICE, BOB, CAROL, DAVE, SCRAPER = (f"secret-of-{name}-0123456789" for name in "abcds")
CAROL_HASH = subprocess.run(["b2sum", "-l", "256"], input=CAROL, capture_output=True, text=True).stdout.split()[0]
KEYS = f"""# the tenants of this test
alice {ALICE}
bob {BOB}
carol blake2b:{CAROL_HASH} share
dave {DAVE} share
scraper {SCRAPER} metrics
"""
PROMPT = "a prompt of more than two blocks, so that there is something to share"
SERVICE = "/baton.v1.Generation/"
METHODS = ("Generate", "Tokenize", "Detokenize", "ListModels", "GetClusterStatus")


def bearer(key):
    return (("authorization", "Bearer " + key),)


class WithKey(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Shows a key with each call."""

    def __init__(self, key):
        self.key = key

    def intercept_unary_unary(self, proceed, details, request):
        return proceed(self.with_key(details), request)

    def intercept_unary_stream(self, proceed, details, request):
        return proceed(self.with_key(details), request)

    def with_key(self, details):
        return details._replace(metadata=(*(details.metadata or ()), *bearer(self.key)))


class Guarded(Members):
    """Members whose stub shows a key, and whose channel may be a secure one."""

    def __init__(self, model, key, options, credentials=None):
        super().__init__(model, *options)
        if credentials:
            self.channel.close()
            self.channel = grpc.secure_channel(self.address, credentials)
        channel = grpc.intercept_channel(self.channel, WithKey(key)) if key else self.channel
        self.stub = services.GenerationStub(channel)


def write(path, text):
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path + ".new", 0o600)
    os.rename(path + ".new", path)


def ask(text=PROMPT, max_tokens=2, salt=""):
    return pb.GenerateRequest(text=text, cache_salt=salt,
                              sampling=pb.Sampling(max_tokens=max_tokens, ignore_eos=True))


def http_get(url, key=None, body=None, context=None):
    request = urllib.request.Request(url, data=body, headers={"Authorization": "Bearer " + key} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class KeysTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.keys = os.path.join(cls.scratch.name, "keys")
        write(cls.keys, KEYS)
        cls.members = Guarded("odd", ALICE, ("--api-keys", cls.keys))
        cls.members.worker("w", "both", "--threads", "1")
        cls.members.wait_ready()

    @classmethod
    def tearDownClass(cls):
        cls.members.close_clean(unittest.TestCase())
        cls.scratch.cleanup()

    def setUp(self):
        self.open_channel = grpc.insecure_channel(self.members.address)
        self.addCleanup(self.open_channel.close)

    def call_raw(self, path, metadata, stream=False):
        """Calls with an empty message; returns the refusal."""
        make = self.open_channel.stream_stream if stream else self.open_channel.unary_stream
        call = make(path, request_serializer=bytes, response_deserializer=bytes)(
            iter([b""]) if stream else b"", timeout=TIMEOUT_S, metadata=metadata, wait_for_ready=True)
        with self.assertRaises(grpc.RpcError) as caught:
            list(call)
        return caught.exception

    def test_nobody_gets_anything_without_a_key(self):
        paths = [(SERVICE + method, False) for method in METHODS]
        paths += [(SERVICE + "NoSuchMethod", False), ("/no.such.Service/Method", False)]
        paths += [(f"/grpc.reflection.{v}.ServerReflection/ServerReflectionInfo", True) for v in ("v1", "v1alpha")]
        wrong = [(), bearer("x"), bearer(ALICE + "x"), bearer(ALICE[:-1]), bearer(SCRAPER), bearer(CAROL_HASH),
                 bearer("blake2b:" + CAROL_HASH), (("authorization", "Basic " + ALICE),), (("authorization", ALICE),)]
        texts = set()
        for path, stream in paths:
            for metadata in wrong:
                with self.subTest(path, metadata=metadata):
                    error = self.call_raw(path, (*metadata, ("x-request-id", "who-am-i")), stream)
                    self.assertEqual(error.code(), grpc.StatusCode.UNAUTHENTICATED)
                    self.assertNotIn("x-request-id", dict(error.initial_metadata()))
                    self.assertEqual(list(error.trailing_metadata()), [])
                    texts.add((bool(metadata), error.details()))
        self.assertEqual(len(texts), 2)  # one for who shows no key, one for who shows any other

    def test_a_message_is_not_read_without_a_key(self):
        call = self.open_channel.unary_unary(SERVICE + "ListModels", request_serializer=bytes)
        with self.assertRaises(grpc.RpcError) as caught:
            call(b"\xff" * (1 << 20), timeout=TIMEOUT_S)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAUTHENTICATED)

    def test_http_asks_for_a_key_too(self):
        url = "http://" + self.members.http
        pages = [("/v1/models", None), ("/v1/models/odd", None), ("/v1/completions", b"{}"), ("/", None),
                 ("/v1/chat/completions", b"{"), ("/metrics", None), ("/nothing", None), ("/v1/completions", None)]
        for page, body in pages:
            for key in (None, ALICE + "x", SCRAPER, CAROL_HASH):
                code, text = http_get(url + page, key, body)
                self.assertEqual(code, 401, page)
                self.assertNotIn("odd", text)
        self.assertEqual(http_get(url + "/v1/models", ALICE)[0], 200)
        for page in ("/healthz", "/readyz"):
            self.assertEqual(http_get(url + page)[0], 200)
        body = json.dumps({"model": "odd", "prompt": "over http, " + PROMPT, "max_tokens": 2}).encode()
        cached = [json.loads(http_get(url + "/v1/completions", key, body)[1])["usage"]["prompt_tokens_details"]
                  ["cached_tokens"] for key in (ALICE, ALICE, BOB)]
        self.assertEqual(cached, [0, (len("over http, " + PROMPT) - 1) // 16 * 16, 0])

    def test_health_says_serving_to_everybody(self):
        stub = health_pb2_grpc.HealthStub(self.open_channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        self.assertEqual(reply.status, health_pb2.HealthCheckResponse.SERVING)

    def test_every_method_answers_with_a_key(self):
        for key in (ALICE, BOB, CAROL, DAVE):
            stub = services.GenerationStub(grpc.intercept_channel(self.open_channel, WithKey(key)))
            self.assertEqual(len(stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S).models), 1)
            self.assertTrue(generate(stub, ask(max_tokens=1)))
        info = self.open_channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        reply = next(info(iter([request]), timeout=TIMEOUT_S, metadata=bearer(BOB)))
        self.assertIn("baton.v1.Generation", [s.name for s in reply.list_services_response.service])

    def cached(self, key, request):
        replies = generate(self.members_stub(key), request)
        return replies[-1].finish.usage.cached_tokens

    def members_stub(self, key):
        return services.GenerationStub(grpc.intercept_channel(self.open_channel, WithKey(key)))

    def test_tenants_share_nothing_unless_told_to(self):
        full = len(PROMPT) // 16 * 16
        tenants = [(ALICE, ""), (ALICE, ""), (BOB, ""), (BOB, ""), (ALICE, "salt"), (CAROL, ""), (DAVE, ""),
                   (DAVE, "salt"), (CAROL, "salt"), (BOB, "salt")]
        text = "!" + PROMPT  # of this test alone
        cached = [self.cached(key, ask(text, salt=salt)) for key, salt in tenants]
        self.assertEqual(cached, [0, full, 0, full, 0, 0, full, 0, full, 0])

    def hit_tokens(self):
        """The worker's counter once it stands still: workers report each 200 ms."""
        def still():
            first = self.members.wait_idle()["w"].prefix_hit_tokens
            time.sleep(0.5)
            return (self.members.wait_idle()["w"].prefix_hit_tokens == first) and (first,)
        return wait_for("a quiet worker", still)[0]

    def test_hits_are_on_own_blocks_alone_by_the_workers_own_count(self):
        """What a tenant's time could tell follows from this; `bench/run tenants` measures it."""
        before = self.hit_tokens()
        for i in range(20):
            seen, unseen = (f"{name}{i:05}" * 60 for name in ("seen", "else"))  # 540 tokens, not 2 requests' alike
            cached = [self.cached(key, ask(text, 1)) for key, text in
                      ((ALICE, seen), (BOB, unseen), (BOB, seen), (BOB, seen))]
            self.assertEqual(cached, [0, 0, 0, (540 - 1) // 16 * 16])
        self.assertEqual(self.hit_tokens() - before, 20 * ((540 - 1) // 16 * 16))  # and no others

    def test_log_names_the_client_and_never_a_secret(self):
        stub = self.members_stub(BOB)
        list(stub.Generate(ask(), timeout=TIMEOUT_S, metadata=(("x-request-id", "named"),)))
        self.members.wait_log("router", r"request done: .*req=named .*client=bob|client=bob .*req=named")
        with self.assertRaises(grpc.RpcError):
            self.members_stub(ALICE + "x").ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S)
        self.members.wait_log("router", r"client refused: address=\S+ method=\S+ListModels why=.unknown API key")
        for name in self.members.processes:
            for secret in (ALICE, BOB, CAROL, DAVE, SCRAPER, CAROL_HASH):
                self.assertNotIn(secret, self.members.log(name))

    def test_changed_file_holds_for_the_next_call(self):
        def may_call(key):
            try:
                self.members_stub(key).ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S)
                return True
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.UNAUTHENTICATED)
                return False
        self.addCleanup(lambda: (write(self.keys, KEYS), wait_for("the old keys", lambda: may_call(BOB), 10)))
        new = "secret-of-nina-0123456789"
        self.assertFalse(may_call(new))
        write(self.keys, KEYS.replace(BOB, new))
        wait_for("the new key", lambda: may_call(new), 10)
        self.assertFalse(may_call(BOB))
        write(self.keys, "alice\n")
        self.members.wait_log("router", r"API keys kept as they were: .*keys:1: a line is")
        self.assertTrue(may_call(new))
        self.assertTrue(may_call(ALICE))

    def run_baton(self, *arguments, **variables):
        return subprocess.run([baton(), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
                              env={**os.environ, **variables})

    def test_commands_show_a_key(self):
        address = ("--address", self.members.address)
        result = self.run_baton("generate", *address, "--max-tokens", "2", "x")
        self.assertEqual(result.returncode, 1)
        self.assertIn("needs an API key", result.stderr)
        self.assertIn("--api-key-file", result.stderr)
        own = os.path.join(self.scratch.name, "own")
        write(own, ALICE + "\n")
        result = self.run_baton("generate", *address, "--api-key-file", own, "--max-tokens", "2", "x")
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.run_baton("status", *address, BATON_API_KEY=ALICE)
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.run_baton("bench", "serve", *address, "--requests", "4", "--rate", "100", "--output-tokens", "2",
                                "--prompt-tokens", "8", BATON_API_KEY=ALICE)
        self.assertEqual(result.returncode, 0, result.stderr)


class MetricsTest(unittest.TestCase):
    def test_metrics_that_others_reach_ask_for_a_key_and_health_does_not(self):
        with tempfile.TemporaryDirectory() as scratch:
            keys = os.path.join(scratch, "keys")
            write(keys, KEYS)
            members = Guarded("odd", ALICE, ("--api-keys", keys, "--admin", "0.0.0.0:0"))
            self.addCleanup(members.close)
            url = members.admin("router")
            for key in (None, ALICE, SCRAPER + "x"):
                code, text = http_get(url + "/metrics", key)
                self.assertEqual(code, 401)
                self.assertNotIn("baton_router", text)
            code, text = http_get(url + "/metrics", SCRAPER)
            self.assertEqual(code, 200)
            self.assertIn("baton_router", text)
            self.assertEqual(http_get(url + "/healthz"), (200, "ok\n"))
            self.assertEqual(http_get(url + "/readyz"), (503, "not ready\n"))
            members.close_clean(self)


class TlsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = cls.scratch.name
        subprocess.run([os.path.join(ROOT, "tests/support/make_certs.sh"), cls.folder], check=True)
        cls.members = Guarded("odd", None, [*cls.files("", "ca-server", "client-ca"),
                                            *cls.files("attach-", "ca-server", "client-ca")], cls.credentials("ca"))
        cls.members.worker("w", "both", "--threads", "1", *cls.files("", "ca-client", "ca"))
        cls.members.wait_ready()

    @classmethod
    def tearDownClass(cls):
        cls.members.close_clean(unittest.TestCase())
        cls.scratch.cleanup()

    @classmethod
    def file(cls, name):
        return os.path.join(cls.folder, name)

    @classmethod
    def files(cls, prefix, name, ca):
        """Options with the certificate `name`, and the authority "ca" as --tls-`ca`."""
        return [f"--{prefix}tls-cert", cls.file(name + ".pem"), f"--{prefix}tls-key", cls.file(name + ".key"),
                f"--{prefix}tls-{ca}", cls.file("ca.pem")]

    @classmethod
    def credentials(cls, authority, own="ca-client"):
        def read(name):
            with open(cls.file(name), "rb") as f:
                return f.read()
        pair = (read(own + ".key"), read(own + ".pem")) if own else (None, None)
        return grpc.ssl_channel_credentials(read(authority + ".pem"), *pair)

    def answers(self, channel):
        with channel:
            try:
                services.GenerationStub(channel).ListModels(pb.ListModelsRequest(), timeout=5)
                return True
            except grpc.RpcError as error:
                self.assertIn(error.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))
                return False

    def test_right_certificates_are_served(self):
        self.assertTrue(generate(self.members.stub, ask()))
        self.assertTrue(self.answers(grpc.secure_channel(self.members.address, self.credentials("ca"))))

    def test_others_get_no_answer(self):
        address = self.members.address
        self.assertFalse(self.answers(grpc.insecure_channel(address)))
        self.assertFalse(self.answers(grpc.secure_channel(address, self.credentials("other"))))
        self.assertFalse(self.answers(grpc.secure_channel(address, self.credentials("ca", own=None))))
        self.assertFalse(self.answers(grpc.secure_channel(address, self.credentials("ca", own="other-client"))))

    def test_http_speaks_tls_alone(self):
        context = ssl.create_default_context(cafile=self.file("ca.pem"))
        url = self.members.http.replace("127.0.0.1", "https://localhost") + "/v1/models"
        with self.assertRaises((urllib.error.URLError, OSError)):  # no certificate of its own
            http_get(url, context=context)
        context.load_cert_chain(self.file("other-client.pem"), self.file("other-client.key"))
        with self.assertRaises((urllib.error.URLError, OSError)):
            http_get(url, context=context)
        context.load_cert_chain(self.file("ca-client.pem"), self.file("ca-client.key"))
        self.assertEqual(http_get(url, context=context)[0], 200)
        with self.assertRaises((urllib.error.URLError, OSError)):
            http_get("http://" + self.members.http + "/v1/models")

    def test_old_tls_is_not_spoken(self):
        for address in (self.members.address, self.members.http):
            context = ssl.create_default_context(cafile=self.file("ca.pem"))
            context.load_cert_chain(self.file("ca-client.pem"), self.file("ca-client.key"))
            context.set_alpn_protocols(["h2", "http/1.1"])
            context.set_ciphers("ALL:@SECLEVEL=0")
            host, port = address.split(":")
            for version, is_spoken in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = version
                try:
                    with socket.create_connection((host, int(port)), 5) as plain, \
                            context.wrap_socket(plain, server_hostname="localhost"):
                        spoke = True
                except OSError:
                    spoke = False
                self.assertEqual(spoke, is_spoken, (address, version))

    def test_health_too_is_behind_tls(self):
        with grpc.insecure_channel(self.members.address) as channel, self.assertRaises(grpc.RpcError):
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)

    def test_commands_speak_tls(self):
        def status(*options):
            return subprocess.run([baton(), "status", "--address", self.members.address, "--timeout", "3s", *options],
                                  capture_output=True, text=True, timeout=TIMEOUT_S)
        result = status(*self.files("", "ca-client", "ca"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(status().returncode, 1)
        self.assertEqual(status("--tls-ca", self.file("other.pem")).returncode, 1)
        pair = self.files("", "ca-client", "ca")[:4]
        for command in ("status", "generate", "bench", "drain", "worker"):  # none talks in plain text when TLS is meant
            for half in (pair, ("--tls-name", "localhost")):
                words = {"bench": ("bench", "serve"), "drain": ("drain", "w"), "generate": ("generate", "x")}
                where = {"worker": ("--model", self.members.model, "--router", self.members.attach),
                         "drain": ("--attach", self.members.attach)}
                result = subprocess.run(
                    [baton(), *words.get(command, (command,)), *where.get(command, ("--address", self.members.address)), *half],
                    capture_output=True, text=True, timeout=TIMEOUT_S)
                self.assertIn("TLS needs the authority", result.stderr, command)
                self.assertNotEqual(result.returncode, 0)
        result = status("--tls-ca", self.file("nothing.pem"))
        self.assertIn("nothing.pem", result.stderr)

    def test_workers_without_a_certificate_do_not_attach(self):
        members = self.members
        members.worker("plain", "both", "--threads", "1")
        members.worker("stranger", "both", "--threads", "1", "--tls-ca", self.file("ca.pem"), "--tls-cert",
                       self.file("other-client.pem"), "--tls-key", self.file("other-client.key"))
        for name in ("plain", "stranger"):
            members.wait_log(name, "router not reached yet")
            self.assertNotIn(name, members.workers())
            members.kill(name)


class ClusterKeyTest(unittest.TestCase):
    def test_attach_address_answers_nothing_without_the_cluster_key(self):
        members = Members("odd")
        self.addCleanup(members.close)
        with grpc.insecure_channel(members.attach) as channel:
            for path in ("/baton.admin.v1.Admin/Drain", "/baton.admin.v1.Admin/Explain", SERVICE + "ListModels",
                         "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/baton.worker.v1.Attach/Other"):
                for metadata in ((), bearer("0" * 64), bearer(ALICE)):
                    call = channel.unary_stream(path, request_serializer=bytes, response_deserializer=bytes)
                    with self.assertRaises(grpc.RpcError) as caught:
                        list(call(b"", timeout=TIMEOUT_S, metadata=metadata))
                    self.assertIn(caught.exception.code(),
                                  (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED), path)
            attach = channel.stream_stream("/baton.worker.v1.Attach/Attach", request_serializer=bytes,
                                           response_deserializer=bytes)
            with self.assertRaises(grpc.RpcError) as caught:
                list(attach(iter([b"\x0a\x7f"]), timeout=TIMEOUT_S))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        members.close_clean(self)

    def test_operators_are_warned_before_their_token_crosses_a_network_in_plain_text(self):
        for command in (("drain", "w"), ("explain", "r")):
            for attach, is_told in (("192.0.2.1:1", True), ("127.0.0.1:1", False)):  # nobody is at either
                result = subprocess.run([baton(), *command, "--attach", attach, "--timeout", "100ms"], timeout=TIMEOUT_S,
                                        capture_output=True, text=True,
                                        env={**os.environ, "BATON_CLUSTER_KEY": "the key of this cluster"})
                self.assertNotEqual(result.returncode, 0)
                self.assertEqual("token crosses the network in plain text" in result.stderr, is_told, result.stderr)

    def test_worker_with_another_cluster_key_does_not_attach(self):
        with tempfile.TemporaryDirectory() as scratch:
            ours, theirs = (os.path.join(scratch, name) for name in ("ours", "theirs"))
            write(ours, "the key of this cluster\n")
            write(theirs, "the key of another cluster\n")
            members = Members("odd", "--cluster-key-file", ours)
            self.addCleanup(members.close)
            members.worker("stranger", "both", "--threads", "1", "--cluster-key-file", theirs)
            members.worker("keyless", "both", "--threads", "1")
            for name in ("stranger", "keyless"):
                members.wait_log(name, r"cannot attach to router: .*another cluster key")
            members.wait_log("router", r"worker refused: .*the same cluster key")
            self.assertEqual(members.workers(), {})
            members.kill("stranger")
            members.kill("keyless")
            members.worker("ours", "both", "--threads", "1", "--cluster-key-file", ours)
            members.wait_ready()
            self.assertTrue(generate(members.stub, ask()))
            members.close_clean(self)


class UpTest(unittest.TestCase):
    def test_up_asks_for_keys_and_speaks_tls_when_told_to(self):
        with tempfile.TemporaryDirectory() as folder:
            def file(name):
                return os.path.join(folder, name)
            subprocess.run([os.path.join(ROOT, "tests/support/make_certs.sh"), folder], check=True)
            write(file("keys"), KEYS)
            cluster = Cluster("--model", tiny_model("odd", folder), "--api-keys", file("keys"), "--threads", "1",
                              "--kv-pool-bytes", "64M", "--tls-cert", file("ca-server.pem"),
                              "--tls-key", file("ca-server.key"), "--tls-ca", file("ca.pem"))
            try:
                def run(*options):
                    return subprocess.run([baton(), "generate", "--address", cluster.address, "--max-tokens", "2", "x",
                                           *options], capture_output=True, text=True, timeout=TIMEOUT_S)
                self.assertEqual(run("--tls-ca", file("ca.pem"), "--api-key", BOB).returncode, 0)
                self.assertIn("needs an API key", run("--tls-ca", file("ca.pem")).stderr)
                self.assertEqual(run("--api-key", BOB, "--timeout", "3s").returncode, 1)
            finally:
                code = cluster.stop()
            self.assertEqual(code, 0)


class DoorsTest(unittest.TestCase):
    """Addresses that other hosts reach."""

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.model = tiny_model("odd", cls.scratch.name)
        cls.environment = {k: v for k, v in os.environ.items() if k != "BATON_CLUSTER_KEY"}

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def refuse(self, words, command, *options):
        result = subprocess.run([baton(), command, "--model", self.model, *options], capture_output=True, text=True,
                                timeout=TIMEOUT_S, env=self.environment)
        self.assertIn(result.returncode, (1, 2), result.stderr)
        for word in (*words, "--insecure"):
            self.assertIn(word, result.stderr)

    def test_open_doors_are_refused_with_advice(self):
        local = ("--listen", "127.0.0.1:0", "--attach", "127.0.0.1:0")
        for everywhere in ("0.0.0.0:0", "[::]:0", "*:0"):
            self.refuse(("--listen", "--api-keys"), "router", *local, "--listen", everywhere)
            self.refuse(("--attach", "--cluster-key-file"), "router", *local, "--attach", everywhere)
            self.refuse(("--admin", "--api-keys"), "router", *local, "--admin", everywhere)
            self.refuse(("--kv-address", "--cluster-key-file"), "worker", "--kv-address", everywhere)
            self.refuse(("--admin", "--api-keys"), "worker", "--admin", everywhere)
            self.refuse(("--listen", "--api-keys"), "up", "--listen", everywhere)

    def test_addresses_that_only_grpc_knows_are_refused(self):
        """It has kinds of addresses of its own: none is listened on that the check of doors can't look at."""
        for address in ("ipv4:0.0.0.0:0", "ipv6:[::]:0", "dns:0.0.0.0:0", "dns:///0.0.0.0:0"):
            for flag in ("--listen", "--attach"):
                local = ("--listen", "127.0.0.1:0", "--attach", "127.0.0.1:0", "--http", "none")
                result = subprocess.run([baton(), "router", "--model", self.model, *local, flag, address],
                                        capture_output=True, text=True, timeout=TIMEOUT_S, env=self.environment)
                self.assertIn(result.returncode, (1, 2), result.stderr)
                self.assertIn("is no address", result.stderr)

    def test_insecure_opens_them(self):
        members = Members(self.model, "--listen", "0.0.0.0:0", "--attach", "0.0.0.0:0", "--admin", "0.0.0.0:0",
                          "--insecure")
        self.addCleanup(members.close)
        members.worker("w", "both", "--threads", "1", "--kv-address", "0.0.0.0:0", "--insecure")
        members.wait_ready()
        self.assertTrue(generate(members.stub, ask()))
        self.assertIn("baton_router", http_get(members.admin("router") + "/metrics")[1])
        members.close_clean(self)

    def test_keys_open_them_to_who_has_one(self):
        keys, cluster = (os.path.join(self.scratch.name, name) for name in ("keys", "cluster"))
        write(keys, KEYS)
        write(cluster, "the key of this cluster\n")
        members = Guarded(self.model, ALICE, ("--listen", "0.0.0.0:0", "--attach", "0.0.0.0:0", "--api-keys", keys,
                                              "--cluster-key-file", cluster))
        self.addCleanup(members.close)
        members.wait_log("router", "API keys cross the network in plain text")
        members.worker("w", "both", "--threads", "1", "--cluster-key-file", cluster)
        members.wait_ready()
        self.assertTrue(generate(members.stub, ask()))
        members.close_clean(self)


if __name__ == "__main__":
    unittest.main()
