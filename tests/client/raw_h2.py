# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 by hand, for clients that no library gives: connections that stay idle, and calls that never read.

Only what these need: preface, SETTINGS, PING, one call for each connection, headers without compression. One thread
serves all connections of a Crowd.
"""
import selectors
import socket
import struct
import threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4


def frame(kind, flags, stream, payload=b""):
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


def frames(bytes_):
    """(type, flags, stream, payload) of each whole HTTP/2 frame, and what is left."""
    found, at = [], 0
    while at + 9 <= len(bytes_):
        end = at + 9 + int.from_bytes(bytes_[at:at + 3], "big")
        if end > len(bytes_):
            break
        found.append((bytes_[at + 3], bytes_[at + 4], int.from_bytes(bytes_[at + 5:at + 9], "big") & 0x7FFFFFFF,
                      bytes_[at + 9:end]))
        at = end
    return found, bytes_[at:]


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def opening(window):
    """Preface and settings; `window` bytes of each stream may come before the client reads any."""
    return PREFACE + frame(SETTINGS, 0, 0, struct.pack("!HI", INITIAL_WINDOW_SIZE, window))


def call(authority, path, message):
    """Stream 1: a gRPC call with one message, and no more of them."""
    headers = b"".join(literal(*pair) for pair in (
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", authority),
        ("content-type", "application/grpc"), ("te", "trailers")))
    return (frame(HEADERS, END_HEADERS, 1, headers)
            + frame(DATA, END_STREAM, 1, b"\0" + struct.pack("!I", len(message)) + message))


class Connection:
    def __init__(self, sock):
        self.sock, self.unread, self.ended = sock, b"", False


class Crowd:
    """Connections that answer what keeps them alive, and read no data of their calls."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.authority, self.target = address, (host, int(port))
        self.selector = selectors.DefaultSelector()
        self.lock = threading.Lock()
        self.n_open = self.n_cut = self.n_ended = 0
        self.stopping = False
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def add(self, path=None, message=b"", window=0):
        """One more connection; with `path`, it makes that call."""
        sock = socket.create_connection(self.target)
        sock.sendall(opening(window) + (call(self.authority, path, message) if path else b""))
        sock.setblocking(False)
        with self.lock:
            self.n_open += 1
            self.selector.register(sock, selectors.EVENT_READ, Connection(sock))

    def serve(self):
        while not self.stopping:
            for key, _ in self.selector.select(0.05):
                try:
                    received = key.fileobj.recv(65536)
                except OSError:
                    received = b""
                if not received:
                    self.drop(key.fileobj)
                    continue
                self.take(key.data, received)

    def take(self, connection, received):
        found, connection.unread = frames(connection.unread + received)
        for kind, flags, _, payload in found:
            answer = b""
            if kind == PING and not flags & ACK:
                answer = frame(PING, ACK, 0, payload)
            elif kind == SETTINGS and not flags & ACK:
                answer = frame(SETTINGS, ACK, 0)
            elif (kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM)) and not connection.ended:
                connection.ended = True
                self.n_ended += 1
            if answer:
                try:
                    connection.sock.sendall(answer)
                except OSError:
                    self.drop(connection.sock)
                    return

    def drop(self, sock):
        with self.lock:
            try:
                self.selector.unregister(sock)
            except KeyError:
                return
            self.n_open -= 1
            self.n_cut += 1
        sock.close()

    def close(self):
        self.stopping = True
        self.thread.join()
        for key in list(self.selector.get_map().values()):
            self.selector.unregister(key.fileobj)
            key.fileobj.close()
        self.selector.close()
