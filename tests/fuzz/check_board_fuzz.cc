// The notes that checking workers write to a server's board, as the server passes them on.
#include <string>

#include "common/base/check.h"
#include "proto/starring/v1/parameter_server.pb.h"
#include "server/door/check_service.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::SilenceProtobuf();
  starring::FuzzInput input(data, size);
  starring::CheckService service({.keep = [](const std::string&) {}});
  starring::CheckService::Clock::time_point now{std::chrono::seconds(1000)};
  while (!input.empty()) {
    now += std::chrono::milliseconds(100 * (input.Byte() % 64));
    starring::v1::CheckRequest request;
    if (!request.ParseFromString(input.Block())) continue;
    request.clear_facts();  // they cost much time
    service.Forget(now);
    if (!service.Answer(request, "peer", now).ok() || request.worker_id() == 0 || request.leave()) continue;
    starring::v1::CheckRequest again;
    again.set_rank(request.rank());
    again.set_worker_id(request.worker_id());
    again.set_get_rank(request.rank());
    again.set_get_stage(request.put_stage());
    const auto reply = service.Answer(again, "peer", now);
    CHECK_OK(reply);
    CHECK_EQ(reply->found(), request.put_stage() != 0);
    CHECK(reply->text() == request.put_text() || !reply->found());
  }
  service.Close(1);
  CHECK(!service.Answer(starring::v1::CheckRequest(), "peer", now).ok());
  return 0;
}
