// Another rank sends messages on its two connections, damaged and not, cut into pieces at any place. The cuts must not
// matter.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/transport/tcp/tcp_stream.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/reached.h"

namespace {

constexpr int64_t kMessageBytesMax = 1 << 16;

struct Inbox final : starring::TcpStream::Receiver {
  absl::StatusOr<std::byte*> OnHeader(int tag, int64_t length) override {
    CHECK(!in_message);
    CHECK_GE(tag, 0);
    CHECK_GE(length, 0);
    if (length > kMessageBytesMax) return absl::InternalError("too long");
    in_message = true;
    messages.emplace_back(tag, std::vector<std::byte>(static_cast<size_t>(length)));
    return messages.back().second.data();
  }
  void OnMessage() override {
    CHECK(in_message);
    in_message = false;
  }
  void OnGoodbye() override { ++goodbyes; }

  std::vector<std::pair<int, std::vector<std::byte>>> messages;
  bool in_message = false;
  int goodbyes = 0;
};

struct Outcome {
  Inbox inbox;
  absl::Status status;
};

Outcome ReadAll(const std::string& bytes, int64_t budget) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  CHECK_EQ(write(ends[0], bytes.data(), bytes.size()), std::ssize(bytes));
  close(ends[0]);
  starring::TcpStream stream(starring::Socket(ends[1]), 1000);
  Outcome outcome;
  while (outcome.status.ok()) outcome.status = stream.Read(budget, outcome.inbox);
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::FuzzInput input(data, std::min<size_t>(size, 1 << 15));
  const int64_t budget = 1 + input.Byte();
  const std::string bytes = input.Rest();
  const Outcome pieces = ReadAll(bytes, budget), whole = ReadAll(bytes, 1 << 20);
  starring::Reached(std::to_string(whole.inbox.messages.size()) + " messages, " + whole.status.ToString());
  CHECK(pieces.status == whole.status) << pieces.status.ToString() << " " << whole.status.ToString();
  CHECK(pieces.inbox.messages.size() == whole.inbox.messages.size());
  CHECK(pieces.inbox.in_message == whole.inbox.in_message);
  CHECK_EQ(pieces.inbox.goodbyes, whole.inbox.goodbyes);
  // The last message may not have arrived as a whole; its other bytes are zero in both.
  CHECK(pieces.inbox.messages == whole.inbox.messages);
  return 0;
}
