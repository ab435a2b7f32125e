// A stranger sends bytes to a rank that listens, or answers a rank that dials. No answer may open a connection, because
// the stranger does not know the secret.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/transport/tcp/tcp_handshake.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/reached.h"

namespace {

// A socket whose other end has sent `bytes` and ended its stream.
starring::Socket SocketWith(const std::string& bytes, int* other_end) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  CHECK_EQ(write(ends[0], bytes.data(), bytes.size()), std::ssize(bytes));
  shutdown(ends[0], SHUT_WR);
  *other_end = ends[0];
  return starring::Socket(ends[1]);
}

template <typename Side>
void RunToTheEnd(Side& side) {
  absl::StatusOr<bool> step = false;
  while (step.ok()) {
    step = side.Advance();
    CHECK(!step.ok() || !*step) << "a stranger was let in";
  }
  starring::Reached(step.status().ToString());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::FuzzInput input(data, std::min<size_t>(size, 1 << 15));
  const bool dials = input.Byte() % 2 == 1;
  const std::string token(32, 's');
  int other_end = -1;
  starring::Socket socket = SocketWith(input.Rest(), &other_end);
  if (dials) {
    starring::TcpDialer dialer(std::move(socket), {.rank = 1, .world_size = 2, .run_id = "run"}, token);
    RunToTheEnd(dialer);
  } else {
    starring::TcpHellosHeard heard;
    starring::TcpDoorkeeper door(std::move(socket), token, &heard);
    RunToTheEnd(door);
  }
  close(other_end);
  return 0;
}
