# SPDX-License-Identifier: Apache-2.0
"""Loads the libraries named, in that order, then uses each: grpc, protobuf, onnx
and rankprobe have gRPC, protobuf and Abseil of their own in one process."""

import pathlib
import subprocess
import sys
import tempfile
import time

for name in sys.argv[1:]:
    if name == "grpc":
        import grpc
    elif name == "protobuf":
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    elif name == "onnx":
        import onnx.checker
        import onnx.helper
    elif name == "rankprobe":
        import rankprobe
        import rankprobe.embedded


def use_grpc() -> None:
    from concurrent import futures

    echo = grpc.method_handlers_generic_handler(
        "t.Echo", {"Say": grpc.unary_unary_rpc_method_handler(lambda request, context: request[::-1])})
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((echo,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary("/t.Echo/Say")(b"abc", timeout=60) == b"cba"
    server.stop(None).wait()


def use_protobuf() -> None:
    # A file of the same name and package as one of rankprobe's own.
    file = descriptor_pb2.FileDescriptorProto(name="rankprobe/v1/types.proto", package="rankprobe.v1")
    file.message_type.add(name="Record").field.add(name="x", number=1, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("rankprobe.v1.Record"))(x=7)
    assert type(message).FromString(message.SerializeToString()).x == 7


def use_onnx() -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.checker.check_model(onnx.helper.make_model(graph))


def use_rankprobe() -> None:
    import numpy

    config = '{"task": "statistics", "level": "L1", "rank": [], "step": [], "dump_path": "d"}'
    with tempfile.TemporaryDirectory() as scratch:
        port = pathlib.Path(scratch, "port")
        with open(pathlib.Path(scratch, "log"), "wb") as log:
            collector = subprocess.Popen(
                [rankprobe.embedded.find_binary("rankprobed"), "--listen", "127.0.0.1:0", "--port-file", str(port),
                 "--data-dir", scratch + "/data"], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 60
            while not (port.exists() and port.read_text().strip()):
                assert collector.poll() is None and time.monotonic() < deadline, "no collector"
                time.sleep(0.05)
            address = f"127.0.0.1:{port.read_text().strip()}"
            session = rankprobe.Session(address, run="r", rank=0, config_json=config)
            session.wait_connected(60)
            session.start()
            session.call("Torch", "add", [numpy.ones(3, numpy.float32)], [numpy.ones(3, numpy.float32)])
            session.stop()
            session.step()
            session.close()
            try:  # an exception through C++ and Python
                rankprobe.Session(address, run="r", rank=0, config_json="{")
            except ValueError:
                pass
            else:
                raise AssertionError("a broken config was accepted")
            subprocess.run([rankprobe.embedded.find_binary("rankprobe"), "--collector", address, "export",
                            "--run", "r", "-o", scratch + "/tree"], check=True, stdout=subprocess.DEVNULL)
            assert "Torch.add.0.forward" in pathlib.Path(scratch, "tree/step0/rank0/dump.json").read_text()
        finally:
            collector.terminate()
            collector.wait(60)


used = {"grpc": use_grpc, "protobuf": use_protobuf, "onnx": use_onnx, "rankprobe": use_rankprobe}
for name in sorted(used):
    used[name]()
print(*sorted(used))
