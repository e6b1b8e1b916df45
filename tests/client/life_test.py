# SPDX-License-Identifier: Apache-2.0
"""How `baton up` and its members start, end and die: what the operator is told, and that no process stays behind.

Nothing here waits for time to pass: where a member has to be slow, it is stopped with SIGSTOP.
"""
import glob
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import unittest

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from members import TIMEOUT_S, Members, baton, generate, pb, services, tiny_model, tokens_of, wait_for  # noqa: E402

COMMANDS = ["up", "router", "worker", "generate", "chat", "tokenize", "status", "drain", "explain", "bench"]


def run_baton(*arguments, timeout=TIMEOUT_S):
    return subprocess.run([baton(), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=False)


def children_of(pid):
    """{first arguments: pid} of the processes whose parent is pid."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="utf-8", errors="replace") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            with open(os.path.dirname(path) + "/cmdline", encoding="utf-8", errors="replace") as f:
                arguments = f.read().split("\0")
        except OSError:
            continue  # it has just ended
        if int(fields[1]) == pid and "--name" in arguments:
            found[arguments[arguments.index("--name") + 1]] = int(path.split("/")[2])
    return found


def read_text(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


class Up:
    """`baton up` with a tiny model."""

    def __init__(self, case, *options):
        self.folder = tempfile.mkdtemp(prefix="baton-test-")
        case.addCleanup(self.close)
        ready, self.log_path = os.path.join(self.folder, "ready"), os.path.join(self.folder, "log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [baton(), "up", "--model", tiny_model("odd", self.folder), "--listen", "127.0.0.1:0", "--threads", "1",
                 "--kv-pool-bytes", "16M", "--ready-file", ready, *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.children = {}
        wait_for("readiness", lambda: os.path.exists(ready) or self.process.poll() is not None)
        if not os.path.exists(ready):
            raise AssertionError(f"up ended with {self.process.returncode}:\n{self.log()}")
        self.children = children_of(self.process.pid)
        with open(ready, encoding="utf-8") as f:
            self.address = f.readline().strip()

    def log(self):
        return read_text(self.log_path)

    def wait_end(self, timeout=20):
        """The exit code; all children must be gone by then."""
        code = self.process.wait(timeout)
        left = [name for name, pid in self.children.items() if not is_gone(pid)]
        if left:
            raise AssertionError(f"{left} still run after up has ended")
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.children.values():
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


class UpTest(unittest.TestCase):
    def test_interrupt_stops_all_of_it(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            up = Up(self)
            self.assertEqual(set(up.children), {"router-0", "prefill-0", "decode-0"})
            up.process.send_signal(number)
            self.assertEqual(up.wait_end(), 0, up.log())
            self.assertIn("stopping; Ctrl-C ends it at once", up.log())

    def test_running_request_ends_before_the_cluster_does(self):
        up = Up(self)
        with grpc.insecure_channel(up.address) as channel:
            stub = services.GenerationStub(channel)
            call = stub.Generate(pb.GenerateRequest(text="hi", sampling=pb.Sampling(max_tokens=700, ignore_eos=True)),
                                 timeout=TIMEOUT_S)
            first = next(call)
            up.process.send_signal(signal.SIGINT)
            replies = [first, *call]
        self.assertEqual(len(tokens_of(replies)), 700)
        self.assertEqual(up.wait_end(), 0, up.log())

    def test_second_interrupt_ends_it_at_once(self):
        up = Up(self, "--stop-timeout", "10m")
        os.kill(up.children["decode-0"], signal.SIGSTOP)  # it won't stop by itself
        up.process.send_signal(signal.SIGINT)
        wait_for("the end of the router", lambda: is_gone(up.children["prefill-0"]))
        self.assertIsNone(up.process.poll())
        up.process.send_signal(signal.SIGINT)
        up.wait_end()  # waits less than ten minutes

    def test_stop_timeout_ends_what_does_not_stop(self):
        up = Up(self, "--stop-timeout", "1s")
        os.kill(up.children["decode-0"], signal.SIGSTOP)
        up.process.send_signal(signal.SIGINT)
        up.wait_end()

    def test_killed_member_is_named_and_the_rest_stopped(self):
        for name in ("decode-0", "prefill-0", "router-0"):
            with self.subTest(name):
                up = Up(self)
                os.kill(up.children[name], signal.SIGKILL)
                self.assertEqual(up.wait_end(), 1)
                self.assertIn(f"{name} was ended by signal 9", up.log())

    def test_killed_up_takes_its_members_along(self):
        up = Up(self)
        up.process.kill()
        up.process.wait()
        for name, pid in up.children.items():
            wait_for(f"the end of {name}", lambda pid=pid: is_gone(pid), 20)

    def test_port_in_use_is_refused(self):
        with socket.socket() as taken, tempfile.TemporaryDirectory() as folder:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            model = tiny_model("odd", folder)
            for option in ("--listen", "--attach", "--admin", "--http"):
                others = () if option == "--listen" else ("--listen", "127.0.0.1:0")
                with self.subTest(option):
                    done = run_baton("up", "--model", model, option, address, *others)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(option, done.stderr)
                    self.assertIn(address, done.stderr)
                    self.assertIn("in use", done.stderr)

    def test_second_router_on_a_port_is_refused(self):
        members = Members("odd")
        self.addCleanup(members.close)
        done = run_baton("router", "--model", members.model, "--listen", members.address, "--attach", "127.0.0.1:0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("in use", done.stderr)
        done = run_baton("router", "--model", members.model, "--listen", "127.0.0.1:0", "--attach", "127.0.0.1:0",
                         "--http", members.address)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "--http .*in use")

    def test_broken_model_is_an_error_that_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            good = tiny_model("odd", folder)
            with open(good, "rb") as f:
                content = f.read()
            bad = {"empty": b"", "text": b"this is no model\n" * 100, "cut": content[:len(content) // 2],
                   "cut early": content[:100], "wrong": content.replace(b"llama.block_count", b"llama.block_cOunt")}
            for name, broken in bad.items():
                path = os.path.join(folder, name.replace(" ", "-") + ".gguf")
                with open(path, "wb") as f:
                    f.write(broken)
                for command in (["up", "--listen", "127.0.0.1:0"], ["worker", "--router", "127.0.0.1:1"],
                                ["router", "--listen", "127.0.0.1:0", "--attach", "127.0.0.1:0"]):
                    if (name, command[0]) == ("wrong", "router"):
                        continue  # its tokenizer is all that a router reads
                    with self.subTest(f"{name}, {command[0]}"):
                        done = run_baton(*command, "--model", path)
                        self.assertEqual(done.returncode, 1, done.stderr)
                        self.assertIn(path, done.stderr)
                        self.assertNotIn("--help", done.stderr)
            done = run_baton("up", "--listen", "127.0.0.1:0", "--model", os.path.join(folder, "missing.gguf"))
            self.assertEqual(done.returncode, 1)
            self.assertIn("missing.gguf", done.stderr)

    def test_every_command_has_a_help_that_teaches(self):
        for command in COMMANDS:
            with self.subTest(command):
                done = run_baton(command, *(["serve"] if command == "bench" else []), "--help")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("Usage: baton " + command, done.stdout)
                self.assertGreater(len(done.stdout.splitlines()), 10)
                self.assertIn(f"\n  baton {command}", done.stdout)  # an example
        for command in COMMANDS:
            self.assertIn(command, run_baton("--help").stdout)

    def test_text_typed_at_a_terminal_ends_with_one_ctrl_d(self):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = os.openpty()
            self.addCleanup(os.close, ours)
            process = subprocess.Popen([baton(), "tokenize", "--model", tiny_model("odd", folder)], stdin=theirs,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            os.close(theirs)
            self.addCleanup(process.kill)
            self.assertIn("Ctrl-D", process.stderr.readline())
            os.write(ours, b"hi\n\x04")
            out, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)
            self.assertIn('"h', out)

    def test_wrong_command_line_is_a_usage_error(self):
        for arguments in (["nothing"], ["up", "--nothing"], ["up"], ["up", "--prefill", "-1", "--model", "x"],
                          ["worker", "--role", "cook"], ["worker"], ["router"], ["worker", "--model", "x", "--chunk", "17"],
                          ["worker", "--model", "x", "--router", "7071"], ["bench", "nothing"], ["drain"],
                          ["router", "--model", "x", "--name", "a b"],
                          ["worker", "--model", "x", "--name", "a\x1b[2J"]):
            with self.subTest(" ".join(arguments)):
                done = run_baton(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("--help", done.stderr)
        self.assertIn("'baton bench serve --help'", run_baton("bench", "serve", "--nothing").stderr)

    def test_unreachable_router_is_an_error(self):
        for command in (["status"], ["generate", "hi"]):
            done = run_baton(command[0], "--address", "127.0.0.1:1", *command[1:])
            self.assertEqual(done.returncode, 1)
            self.assertIn("no router answers at 127.0.0.1:1: ", done.stderr)
        done = run_baton("status", "--address", "7070")
        self.assertEqual(done.returncode, 1)
        self.assertIn("'7070' is no address", done.stderr)

    def test_commands_say_what_is_wrong_and_what_to_do(self):
        up = Up(self)
        with open(os.path.join(up.folder, "ready"), encoding="utf-8") as f:
            listen, attach, http = f.read().splitlines()
        for command, text in (
                (["status", "--address", attach], "Give the router's --listen address"),
                (["explain", "x", "--attach", listen], "Give the router's --attach address"),
                (["drain", "decode-0", "--attach", attach], "the router's cluster key: --cluster-key-file FILE"),
                (["status", "--address", http], "Something else is there, or TLS is"),
                (["generate", "--address", listen, "--ignore-eos", "--timeout", "1ms", "x"], "within 0.001 s"),
                (["bench", "serve", "--address", listen, "--requests", "2", "--prompt-tokens", "100000"],
                 "the first request failed: the prompt has 100000 tokens")):
            with self.subTest(" ".join(command)):
                done = run_baton(*command)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(text, done.stderr)
                self.assertNotIn("API key", done.stderr)

    def test_ready_file_that_cannot_be_written_is_told_before_readiness(self):
        with tempfile.TemporaryDirectory() as folder:
            model = tiny_model("odd", folder)
            places = [os.path.join(folder, name) for name in ("a-folder", "a-pipe", "missing/file")]
            os.mkdir(places[0])
            os.mkfifo(places[1])
            precious = os.path.join(folder, "precious")  # what is left of a path that is cut
            with open(precious, "w", encoding="ascii") as file:
                file.write("kept")
            places.append(folder + "/" * (4095 - len(precious) + 1) + "preciousXXXX")
            before = sorted(os.listdir(folder))
            for place in places:
                with self.subTest(place):
                    done = run_baton("up", "--model", model, "--listen", "127.0.0.1:0", "--threads", "1",
                                     "--kv-pool-bytes", "16M", "--ready-file", place)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn("cannot write --ready-file" + (f" '{place}'" if len(place) < 200 else ""), done.stderr)
                    self.assertEqual(done.stdout, "")
                    self.assertEqual(sorted(os.listdir(folder)), before)
            self.assertTrue(stat.S_ISFIFO(os.stat(places[1]).st_mode))

    def test_ready_file_takes_nobody_elses_place(self):
        with tempfile.TemporaryDirectory() as folder:
            ready = os.path.join(folder, "ready")
            victim = os.path.join(folder, "victim")
            with open(victim, "w", encoding="ascii") as file:
                file.write("kept")
            os.symlink(victim, ready + ".new")
            process = subprocess.Popen([baton(), "up", "--model", tiny_model("odd", folder), "--listen", "127.0.0.1:0", "--threads",
                                        "1", "--kv-pool-bytes", "16M", "--ready-file", ready], stdout=subprocess.DEVNULL)
            self.addCleanup(process.wait)
            self.addCleanup(process.terminate)
            wait_for("the ready file", lambda: os.path.exists(ready))
            self.assertFalse(os.path.islink(ready))
            with open(victim, encoding="ascii") as file:
                self.assertEqual(file.read(), "kept")
            self.assertTrue(os.path.islink(ready + ".new"))

    def test_drained_member_ends_the_cluster_with_the_reason(self):
        up = Up(self)
        os.kill(up.children["decode-0"], signal.SIGTERM)
        self.assertEqual(up.wait_end(), 1)
        self.assertNotIn("stopping; ", up.log())
        self.assertIn("decode-0 was told to end, by `baton drain` or SIGTERM", up.log())


class SignalTest(unittest.TestCase):
    def test_signal_before_the_start_is_done_stops_it_in_order(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            members = Members("odd")
            self.addCleanup(members.close)
            members.worker("w", "both")
            members.start("other", "router", "--model", members.model, "--listen", "127.0.0.1:0", "--attach",
                          "127.0.0.1:0", "--admin", "127.0.0.1:0")
            for name, codes in (("other", (0,)), ("w", (0, 130))):  # 130: it was still loading
                with self.subTest(f"{name}, {number}"):
                    members.wait_log(name, "admin address served")  # said first of all
                    members.signal(name, number)
                    self.assertIn(members.processes[name].wait(TIMEOUT_S), codes, members.log(name))

    def test_signal_while_it_ends_kills_nobody(self):
        for _ in range(5):
            members = Members("odd")
            self.addCleanup(members.close)
            members.signal("router", signal.SIGTERM)
            members.wait_log("router", "stopping")
            members.signal("router", signal.SIGTERM)
            self.assertIn(members.processes["router"].wait(TIMEOUT_S), (0, 130), members.log("router"))


class DeathTest(unittest.TestCase):
    def start(self, workers, *router):
        members = Members("odd", *router)
        self.addCleanup(members.close)
        for name, role in workers.items():
            members.worker(name, role, "--threads", "1")
        members.wait_ready()
        return members

    def health(self, members):
        stub = health_pb2_grpc.HealthStub(members.channel)
        return stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status

    def test_health_follows_the_workers(self):
        members = Members("odd", "--no-local-prefill", "--queue-time", "200ms")
        self.addCleanup(members.close)
        watch = health_pb2_grpc.HealthStub(members.channel).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S,
                                                                  wait_for_ready=True)
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.NOT_SERVING)
        with self.assertRaises(grpc.RpcError) as caught:
            generate(members.stub, pb.GenerateRequest(text="hi"))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(run_baton("status", "--address", members.address).returncode, 1)
        members.worker("d", "decode")
        members.wait_ready()
        self.assertEqual(self.health(members), health_pb2.HealthCheckResponse.NOT_SERVING)  # nobody prefills
        members.worker("p", "prefill")
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVING)
        members.kill("d")
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.NOT_SERVING)
        watch.cancel()

    def test_prefill_worker_killed_before_its_first_token_is_not_noticed(self):
        members = self.start({"p0": "prefill", "p1": "prefill", "d": "decode"}, "--no-local-prefill")
        requests = [pb.GenerateRequest(text=f"request number {i} of a few",
                                       sampling=pb.Sampling(max_tokens=12, ignore_eos=True, temperature=1, seed=i))
                    for i in range(8)]
        truth = [tokens_of(generate(members.stub, request)) for request in requests]
        members.signal("p0", signal.SIGSTOP)
        # Other salts: what was computed for the truth is no help now.
        calls = []
        for request in requests:
            request.cache_salt = "again"
            calls.append(members.stub.Generate(request, timeout=TIMEOUT_S))
        results = [None] * len(calls)

        def read(i):
            results[i] = list(calls[i])
        threads = [threading.Thread(target=read, args=[i]) for i in range(len(calls))]
        for thread in threads:
            thread.start()
        wait_for("requests that hang on p0", lambda: members.status().router.requests_running > 0
                 and any(result is not None for result in results))
        members.kill("p0")
        for thread in threads:
            thread.join()
        self.assertEqual([tokens_of(result) for result in results], truth)
        attempts = [result[-1].finish.route.attempts for result in results]
        self.assertGreater(max(attempts), 1)
        self.assertEqual({result[-1].finish.route.prefill_worker for result in results}, {"p1"})
        self.assertGreater(members.status().router.retries, 0)
        members.wait_idle()
        members.close_clean(self)

    def test_only_decode_worker_killed_in_mid_stream_ends_the_stream_after_the_queue_time_and_frees_the_rest(self):
        members = self.start({"p": "prefill", "d": "decode"}, "--no-local-prefill", "--queue-time", "300ms")
        call = members.stub.Generate(pb.GenerateRequest(text="hi", sampling=pb.Sampling(max_tokens=900, ignore_eos=True)),
                                     timeout=TIMEOUT_S)
        next(call)
        members.signal("d", signal.SIGSTOP)
        members.kill("d")
        with self.assertRaises(grpc.RpcError) as caught:
            list(call)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertIn("no worker could go on with it", caught.exception.details())
        wait_for("the end of the dead worker", lambda: set(members.workers()) == {"p"})
        members.wait_idle()
        members.worker("d2", "decode")
        members.wait_ready()
        self.assertEqual(len(tokens_of(generate(members.stub, pb.GenerateRequest(
            text="hi", sampling=pb.Sampling(max_tokens=9, ignore_eos=True))))), 9)
        members.close_clean(self)

    def test_restarted_router_knows_its_workers_again(self):
        members = self.start({"p": "prefill", "d": "decode"}, "--no-local-prefill")
        members.restart_router()
        self.assertEqual(len(tokens_of(generate(members.stub, pb.GenerateRequest(
            text="hi", sampling=pb.Sampling(max_tokens=9, ignore_eos=True)), wait_for_ready=True))), 9)
        members.close_clean(self)

    def test_worker_at_the_clients_address_is_told_of_the_other_one(self):
        members = self.start({"b": "both"})
        members.worker("lost", "both", "--threads", "1", "--router", members.address)
        members.wait_log("lost", r"cannot attach to router: .*Workers go to a router's --attach address")

    def test_worker_of_another_cluster_is_refused(self):
        members = self.start({"b": "both"})
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            with open(log, "wb") as stderr:
                other = subprocess.Popen(
                    [baton(), "worker", "--model", members.model, "--router", members.attach, "--kv-pool-bytes", "16M"],
                    env={**os.environ, "BATON_CLUSTER_KEY": "00" * 32}, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=stderr)
            try:
                wait_for("a refusal", lambda: "cluster key" in read_text(log), 20)
            finally:
                other.kill()
                other.wait()
        self.assertEqual(set(members.workers()), {"b"})


if __name__ == "__main__":
    unittest.main()
