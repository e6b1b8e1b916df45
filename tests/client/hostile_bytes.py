# SPDX-License-Identifier: Apache-2.0
"""Records what clients say to a port, damages it, and says it again: for tests of hostile input.

    with Recorder(target) as recorder:       # a proxy on a port (or socket file) of its own
        ...talk to recorder.address...
    recorder.sessions                        # the client's bytes of each connection
    Attack(target, sessions, seed).run(1000)

Everything is drawn from seeds: session n of a seed is the same for ever.
"""
import array
import errno
import os
import random
import select
import socket
import struct
import threading
import time

import raw_h2 as h2

EXTREMES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 1 << 31, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1]
PIECE_MAX = 64
END_S = 5 * int(os.environ.get("BATON_SLOWNESS", "2"))  # from the end of what is said to the end of the connection
FD_MAX = 8


def connect(target):
    """(host, port), or the path of a unix socket."""
    if isinstance(target, str):
        made = socket.socket(socket.AF_UNIX)
    else:
        made = socket.socket()
    made.settimeout(END_S)
    try:
        made.connect(target)
    except OSError:
        made.close()
        raise
    return made


def split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


class Recorder:
    """A proxy before `target` that keeps what came from the client. Descriptors that the target sends go along."""

    def __init__(self, target, listen=("127.0.0.1", 0)):
        self.target = target
        self.sessions = []
        self.listener = socket.socket(socket.AF_UNIX if isinstance(listen, str) else socket.AF_INET)
        if not isinstance(listen, str):
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(listen)
        self.listener.listen(64)
        self.name = self.listener.getsockname()
        self.address = self.name if isinstance(listen, str) else "%s:%d" % self.name
        self.threads = []
        self.closing = False
        self.wake_read, self.wake_write = os.pipe()
        self.start(self.accept)

    def start(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        self.threads.append(thread)

    def accept(self):
        while True:
            ready, _, _ = select.select([self.listener, self.wake_read], [], [])
            if self.wake_read in ready:
                return
            client, _ = self.listener.accept()
            self.start(self.carry, client)

    def carry(self, client):
        said = bytearray()
        self.sessions.append(said)
        try:
            with client, connect(self.target) as target:
                self.shuttle(client, target, said)
        except OSError:
            pass

    def shuttle(self, client, target, said):
        while True:
            ready, _, _ = select.select([client, target, self.wake_read], [], [])
            if self.wake_read in ready:
                return
            for source, sink in ((client, target), (target, client)):
                if source not in ready:
                    continue
                fds = array.array("i")
                bytes_, ancillary, _, _ = source.recvmsg(1 << 16, socket.CMSG_SPACE(FD_MAX * fds.itemsize))
                for level, kind, content in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
                if not bytes_:
                    return
                if source is client:
                    said += bytes_
                sent = sink.sendmsg([bytes_], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else [])
                sink.sendall(bytes_[sent:])
                for fd in fds:
                    os.close(fd)

    def close(self):
        if not self.closing:
            self.closing = True
            os.write(self.wake_write, b"x")
            for thread in self.threads:
                thread.join(10)
            self.listener.close()
            os.close(self.wake_read)
            os.close(self.wake_write)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.sessions = [bytes(said) for said in self.sessions if said]


def damage(bytes_, draw):
    """One wound: a bit, an extreme number, a cut, a piece inserted, doubled, taken out or swapped with another."""
    if not bytes_:
        return bytes_
    at = draw.randrange(len(bytes_))
    n = min(draw.randrange(1, PIECE_MAX + 1), len(bytes_) - at)
    kind = draw.randrange(8)
    if kind <= 1:
        bytes_[at] ^= 1 << draw.randrange(8)
    elif kind == 2:
        width = draw.choice((1, 2, 4, 8))
        number = draw.choice(EXTREMES) & ((1 << 8 * width) - 1)
        bytes_[at:at + width] = number.to_bytes(width, draw.choice(("little", "big")))
    elif kind == 3:
        del bytes_[at:]
    elif kind == 4:
        bytes_[at:at] = draw.randbytes(n)
    elif kind == 5:
        bytes_[at:at] = bytes_[at:at + n]
    elif kind == 6:
        to = draw.randrange(len(bytes_) - n + 1)
        first, second = bytes_[at:at + n], bytes_[to:to + n]
        bytes_[at:at + n] = second
        bytes_[to:to + n] = first
    else:
        del bytes_[at:at + n]
    return bytes_


class Attack:
    """Says damaged sessions to `target`, several at a time."""

    def __init__(self, target, sessions, seed=1):
        self.target = target
        self.sessions = sessions
        self.seed = seed
        self.lock = threading.Lock()
        self.next = 0
        self.failures = []
        self.answered = 0

    def session(self, number):
        draw = random.Random(f"{self.seed} {number}")
        made = bytearray(draw.choice(self.sessions))
        for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
            made = damage(made, draw)
        return bytes(made), draw

    def play(self, number):
        """A session is said in one to three parts. Then comes an end of file (and the port has to close within
        END_S), or a moment in which it may answer, or a reset."""
        said, draw = self.session(number)
        cuts = sorted(draw.randrange(len(said) + 1) for _ in range(draw.choice((0, 0, 1, 2))))
        ending = draw.choice(("end", "end", "end", "end", "wait", "reset"))
        try:
            with connect(self.target) as made:
                for begin, end in zip([0] + cuts, cuts + [len(said)]):
                    made.sendall(said[begin:end])
                if ending == "reset":
                    if not isinstance(self.target, str):
                        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                    return
                if ending == "end":
                    made.shutdown(socket.SHUT_WR)
                else:
                    made.settimeout(draw.choice((0.02, 0.1)))
                while made.recv(1 << 16):
                    self.answered += 1
        except socket.timeout:
            if ending == "end":
                self.failures.append(f"session {number} of seed {self.seed}: still open after {END_S} s")
        except OSError as error:
            if error.errno in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                return  # the port had heard enough
            self.failures.append(f"session {number} of seed {self.seed}: {error}")

    def worker(self, end):
        while True:
            with self.lock:
                number = self.next
                if number >= end or len(self.failures) > 10:
                    return
                self.next += 1
            self.play(number)

    def run(self, n, n_threads=8):
        """Returns the seconds that it took."""
        began = time.monotonic()
        end = self.next + n
        threads = [threading.Thread(target=self.worker, args=(end,), daemon=True) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - began


class Unfinished:
    """Begins a gRPC call and sends all of its message of `n_bytes` but the last byte, as the server's windows allow; then
    holds the connection until close(). `taken`: bytes sent; `ended`: the server did not want more."""

    def __init__(self, address, path, n_bytes):
        headers = h2.call(address, path, b"")[:-14]  # without the message, which would be whole
        self.windows = {0: 65535, 1: 65535}
        self.initial = 65535
        self.taken = 0
        self.ended = False
        self.unread = b""
        self.socket = connect(split(address))
        self.socket.settimeout(0.5)
        try:
            self.socket.sendall(h2.opening(0))
            self.read()
            self.socket.sendall(headers)
            self.put(b"\0" + n_bytes.to_bytes(4, "big"))
            while self.taken < n_bytes - 1 and not self.ended:
                self.send(min(16384, n_bytes - 1 - self.taken))
        except OSError:  # closed, or no window any more
            self.ended = True

    def put(self, bytes_):
        self.socket.sendall(h2.frame(h2.DATA, 0, 1, bytes_))
        self.windows[0] -= len(bytes_)
        self.windows[1] -= len(bytes_)

    def send(self, n):
        n = min(n, self.windows[0], self.windows[1])
        if n > 0:
            self.put(b"x" * n)
            self.taken += n
        if n <= 0 or select.select([self.socket], [], [], 0)[0]:
            self.read()

    def read(self):
        bytes_ = self.socket.recv(1 << 16)
        self.ended = not bytes_
        found, self.unread = h2.frames(self.unread + bytes_)
        for kind, flags, stream, payload in found:
            if kind == h2.WINDOW_UPDATE:
                self.windows[stream] = self.windows.get(stream, 0) + int.from_bytes(payload, "big")
            elif kind == h2.SETTINGS and flags == 0:
                for key, value in struct.iter_unpack("!HI", payload):
                    if key == h2.INITIAL_WINDOW_SIZE:
                        self.windows[1] += value - self.initial
                        self.initial = value
                self.socket.sendall(h2.frame(h2.SETTINGS, h2.ACK, 0))
            elif kind == h2.PING and flags == 0:
                self.socket.sendall(h2.frame(h2.PING, h2.ACK, 0, payload))
            elif kind == h2.GOAWAY or (kind in (h2.RST_STREAM, h2.HEADERS) and stream == 1):
                self.ended = True

    def close(self):
        self.socket.close()
