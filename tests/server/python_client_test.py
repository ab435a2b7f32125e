"""A plain protobuf client, generated from the .proto, acts as a worker, together with a C++ worker."""
import array
import hashlib
import hmac
import importlib
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import unittest

from tests.server.server_process import Server, agreement_bytes, digest_of, make_secret, start_worker

STEPS = 3
WIRE_VERSION = 5  # of common/wire/exchange_message.h, and what this client was written for


def generate_stubs(folder):
    """Runs protoc on the .proto files of the wire and imports the modules; None if a tool is missing."""
    plugin = shutil.which("grpc_python_plugin")
    if shutil.which("protoc") is None or plugin is None:
        return None
    try:
        importlib.import_module("grpc")
    except ImportError:
        return None
    files = ["proto/starring/v1/" + name for name in ("job.proto", "parameter_server.proto", "proof.proto")]
    subprocess.run(["protoc", "--plugin=protoc-gen-grpc_python=" + plugin, "--proto_path=.",
                    "--python_out=" + folder, "--grpc_python_out=" + folder] + files, check=True)
    for package in ("proto", "proto/starring", "proto/starring/v1"):  # else the workspace's folder is found first
        open(os.path.join(folder, package, "__init__.py"), "w").close()
    sys.path.insert(0, folder)
    return tuple(importlib.import_module("proto.starring.v1." + name)
                 for name in ("job_pb2", "parameter_server_pb2", "parameter_server_pb2_grpc", "proof_pb2"))


def key_of(secret):
    """The key of requests over gRPC, of the file `secret` (common/security/job_secret.h)."""
    with open(secret, "rb") as file:
        digest = hashlib.sha256(file.read()).digest()
    return hmac.new(digest, b"starring grpc requests", hashlib.sha256).digest()


def gradient(rank, step, begin, end):
    """What star_worker calls GradientAt; C++'s % keeps the sign, but all numbers here are positive."""
    return array.array("f", ((e * 7 + step * 13 + rank * 29) % 17 - 8 for e in range(begin, end)))


class PythonWorker:
    """A worker with one shard, which owns every bucket completely."""

    def __init__(self, stubs, address, rank, world_size, key=b""):
        import grpc
        job_pb2, self.pb, services, self.proof_pb = stubs
        self.rank = rank
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1),
                                                               ("grpc.enable_http_proxy", 0)])
        self.service = services.ParameterServerStub(self.channel)
        agreement = job_pb2.JobAgreement.FromString(agreement_bytes(world_size))
        self.element_count = agreement.element_count
        request = self.pb.JoinRequest(
            rank=rank, wire_version=WIRE_VERSION, worker_id=4711 + rank, shard=0, shard_count=1,
            agreement=agreement.SerializeToString(), join_deadline_ms=30000, exchange_deadline_ms=30000)
        if key:
            self.prove("Join", request, key)
        reply = self.service.Join(request, timeout=40)
        self.requests = queue.Queue()
        self.answers = self.service.Exchange(iter(self.requests.get, None))
        self.requests.put(self.pb.ExchangeMessage(kind=self.pb.ExchangeMessage.HELLO, rank=rank, lane=0,
                                                  job_id=reply.job_id))
        assert next(self.answers).kind == self.pb.ExchangeMessage.HERE

    def prove(self, method, request, key):
        """As common/wire/request_proof.h tells it."""
        def code(*parts):
            return hmac.new(key, b"".join(parts), hashlib.sha256).digest()
        nonce = os.urandom(32)
        server = self.service.Challenge(self.proof_pb.ChallengeRequest(nonce=nonce), timeout=40)
        assert server.code == code(b"starring server\0", b"%d\0" % server.shard, nonce, server.nonce)
        request.proof.wire_version = WIRE_VERSION
        request.proof.client_nonce = nonce
        request.proof.server_nonce = server.nonce
        request.proof.code = code(b"starring client\0", method.encode() + b"\0", nonce, server.nonce,
                                  request.SerializeToString())

    def ask(self, answer_kind, **fields):
        self.requests.put(self.pb.ExchangeMessage(**fields))
        answer = next(self.answers)
        assert answer.kind == answer_kind, answer
        return answer

    def fetch(self):
        """Bucket 0 is the end of the vector, so the buckets' lengths tell where each begins."""
        self.buckets = []
        parameters = array.array("f", bytes(4 * self.element_count))
        end = self.element_count
        while end > 0:
            answer = self.ask(self.pb.ExchangeMessage.PARAMETERS, kind=self.pb.ExchangeMessage.FETCH_PARAMETERS,
                              step=-1, bucket=len(self.buckets))
            begin = end - len(answer.payload) // 4
            self.buckets.append((begin, end))
            parameters[begin:end] = array.array("f", answer.payload)
            end = begin
        self.parameters = parameters

    def train(self, steps, messages_per_gradient):
        for step in range(steps):
            for bucket, (begin, end) in enumerate(self.buckets):
                message = self.pb.ExchangeMessage(kind=self.pb.ExchangeMessage.GRADIENT, step=step, bucket=bucket,
                                                  payload=gradient(self.rank, step, begin, end).tobytes())
                for _ in range(messages_per_gradient):
                    self.requests.put(message)
            answered = set()
            while len(answered) < len(self.buckets):
                answer = next(self.answers)
                assert answer.kind == self.pb.ExchangeMessage.PARAMETERS, answer
                if answer.step != step:
                    continue  # a second answer to a message that was sent twice
                begin, end = self.buckets[answer.bucket]
                self.parameters[begin:end] = array.array("f", answer.payload)
                answered.add(answer.bucket)

    def finish(self):
        self.requests.put(self.pb.ExchangeMessage(kind=self.pb.ExchangeMessage.FINISH))
        for answer in self.answers:
            if answer.kind == self.pb.ExchangeMessage.FINISHED:
                break
        self.requests.put(None)
        self.channel.close()

    def digest(self):
        return hashlib.sha256(self.parameters.tobytes()).hexdigest()


class PythonClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.stubs = generate_stubs(cls.folder.name)
        if cls.stubs is None:
            print("SKIPPED: protoc, grpc_python_plugin or python3-grpcio is missing: run deploy/setup.sh", flush=True)
            raise unittest.SkipTest("no gRPC for Python")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def start_server(self, *flags):
        server = Server(*flags)
        self.addCleanup(server.stop)
        return server

    def digest_of_two_cpp_workers(self):
        server = self.start_server()
        workers = [start_worker([server], rank, 2, "--steps=%d" % STEPS) for rank in range(2)]
        digests = [digest_of(worker) for worker in workers]
        self.assertEqual(digests[0], digests[1])
        return digests[0]

    def test_a_python_worker_beside_a_cpp_worker(self):
        expected = self.digest_of_two_cpp_workers()
        for messages_per_gradient in (1, 2):
            server = self.start_server()
            cpp = start_worker([server], 0, 2, "--steps=%d" % STEPS)
            self.addCleanup(cpp.kill)
            python = PythonWorker(self.stubs, server.address, 1, 2)
            python.fetch()
            python.train(STEPS, messages_per_gradient)
            python.finish()
            self.assertEqual(digest_of(cpp), expected)
            self.assertEqual(python.digest(), expected)
            code, errors = server.wait()
            self.assertEqual(code, 0, errors)

    def test_a_client_proves_that_it_has_the_secret(self):
        import grpc
        secret = os.path.join(self.folder.name, "secret")
        make_secret(secret)
        server = self.start_server("--job_secret=" + secret)
        with self.assertRaises(grpc.RpcError) as refusal:
            PythonWorker(self.stubs, server.address, 0, 1)
        self.assertEqual(refusal.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
        with self.assertRaises(AssertionError):
            PythonWorker(self.stubs, server.address, 0, 1, b"another")
        python = PythonWorker(self.stubs, server.address, 0, 1, key_of(secret))
        python.requests.put(None)  # ends the job: its only worker leaves
        python.channel.close()

    def test_another_wire_version_is_refused_with_both(self):
        import grpc
        _, pb, services, _ = self.stubs
        server = self.start_server()
        with grpc.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            for version in (0, WIRE_VERSION + 1):
                with self.assertRaises(grpc.RpcError) as refusal:
                    services.ParameterServerStub(channel).Join(
                        pb.JoinRequest(wire_version=version, shard_count=1, agreement=agreement_bytes(1),
                                       join_deadline_ms=30000, exchange_deadline_ms=30000), timeout=40)
                self.assertEqual(refusal.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertIn("version %d of the wire, this server version %d" % (version, WIRE_VERSION),
                              refusal.exception.details())

    def test_what_does_not_parse_is_refused_and_not_logged(self):
        import grpc
        server = self.start_server()
        with grpc.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            join = channel.unary_unary("/starring.v1.ParameterServer/Join")
            for _ in range(3):
                with self.assertRaises(grpc.RpcError):
                    join(b"\x0a\x01\xff", timeout=20)  # a run_id that is no UTF-8
        server.process.terminate()
        self.assertNotIn("libprotobuf", server.wait()[1])

    def test_a_server_prints_no_commands_of_a_terminal(self):
        server = self.start_server()
        python = PythonWorker(self.stubs, server.address, 0, 1)
        python.requests.put(python.pb.ExchangeMessage(kind=python.pb.ExchangeMessage.ABORT, code=10,
                                                      text="\x1b[2Jnothing"))
        python.requests.put(None)
        for _ in python.answers:
            pass  # the end of the stream: the server need not wait for this worker
        python.channel.close()
        code, errors = server.wait()
        self.assertEqual(code, 1, errors)
        self.assertNotIn("\x1b", errors)
        self.assertIn("error: rank 0 gave up: ?[2Jnothing", errors)

    def test_get_status(self):
        import grpc
        _, pb, services, _ = self.stubs
        server = self.start_server()
        with grpc.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            service = services.ParameterServerStub(channel)
            status = service.GetStatus(pb.GetStatusRequest(), timeout=20)
            self.assertEqual(status.state, pb.GetStatusReply.WAITING)
            self.assertIn("no worker", status.message)
            cpp = start_worker([server], 0, 2, "--steps=1")
            self.addCleanup(cpp.kill)
            python = PythonWorker(self.stubs, server.address, 1, 2)
            python.fetch()
            status = service.GetStatus(pb.GetStatusRequest(), timeout=20)
            self.assertEqual(status.state, pb.GetStatusReply.RUNNING)
            self.assertEqual(status.world_size, 2)
            self.assertEqual([worker.rank for worker in status.workers], [0, 1])
            self.assertEqual(status.workers[1].lanes_open, 1)
            python.train(1, 1)
            self.assertEqual(service.GetStatus(pb.GetStatusRequest(), timeout=20).steps_complete, 1)
            python.finish()
            self.assertEqual(digest_of(cpp), python.digest())

    def test_get_status_of_a_server_that_meets_its_workers(self):
        import grpc
        _, pb, services, _ = self.stubs
        # No worker comes, and the server goes on looking for the first.
        server = self.start_server("--transport=tcp", "--rendezvous=127.0.0.1:9", "--world_size=2")
        with grpc.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            status = services.ParameterServerStub(channel).GetStatus(pb.GetStatusRequest(), timeout=20)
            self.assertEqual(status.state, pb.GetStatusReply.WAITING)
            self.assertIn("waiting for the workers at --rendezvous", status.message)


if __name__ == "__main__":
    unittest.main()
