// The notes that checking workers write to a server's board, as the server passes them on.
#include <string>

#include "common/base/check.h"
#include "proto/starring/v1/parameter_server.pb.h"
#include "server/door/check_service.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::SilenceProtobuf();
  starring::FuzzInput input(data, size);
  starring::CheckBoard board;
  starring::CheckBoard::Clock::time_point now{std::chrono::seconds(1000)};
  while (!input.empty()) {
    now += std::chrono::milliseconds(100 * (input.Byte() % 64));
    starring::v1::CheckRequest request;
    if (!request.ParseFromString(input.Block())) continue;
    board.Forget(now);
    if (!board.Greet(request.rank(), request.worker_id(), now).ok()) continue;
    if (request.put_stage() != 0 && board.Put(request.rank(), request.put_stage(), request.put_text()).ok()) {
      const std::string* const text = board.Get(request.rank(), request.put_stage());
      CHECK(text != nullptr && *text == request.put_text());
    }
    (void)board.Get(request.get_rank(), request.get_stage());
    if (request.leave()) {
      board.Leave(request.rank());
      CHECK(board.Get(request.rank(), request.put_stage()) == nullptr);
    }
    CHECK_GE(board.worker_count(), 0);
  }
  board.Clear();
  CHECK_EQ(board.worker_count(), 0);
  return 0;
}
