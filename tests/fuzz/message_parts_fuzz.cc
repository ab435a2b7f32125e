// The parts of long payloads, from several messages on one stream. A payload is represented by its length alone,
// because its content does not matter and would need gigabytes.
//
// The input is the length of the whole payload, then five bytes for each message.
#include <memory>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/wire/exchange_message.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/reached.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::FuzzInput input(data, size);
  const std::byte* const nowhere = nullptr;
  const int parts = 1 + input.Byte() % 16;
  const int64_t payload_bytes = starring::kMessagePayloadBytesMax * parts + 1 + input.Word();
  CHECK_EQ(starring::PartCount(payload_bytes), parts + 1);
  starring::PartAssembler assembler;
  while (!input.empty()) {
    starring::ReceivedMessage part;
    const int fields = input.Byte();
    part.fields.set_kind(fields % 2 == 0 ? starring::v1::ExchangeMessage::GRADIENT
                                         : starring::v1::ExchangeMessage::INITIAL_STATE);
    part.fields.set_step(fields / 2 % 2);
    part.fields.set_vector(fields / 4 % 2);
    const auto number = static_cast<int8_t>(input.Byte());
    // Rarely a length that no sender can produce.
    part.fields.set_part(number == 127 ? INT32_MAX : number);
    const int length = input.Byte();
    part.payload_bytes = length % 4 == 3                  ? input.Word()
                         : number >= 0 && number <= parts ? starring::PartBytes(payload_bytes, number)
                                                          : starring::kMessagePayloadBytesMax;
    part.payload.emplace_back(nowhere, size_t{0});
    part.keeper = std::make_shared<int>(number);
    const auto whole = assembler.Add(part, payload_bytes);
    starring::Reached(!whole.ok() ? whole.status().ToString() : whole->has_value() ? "whole" : "taken");
    CHECK(assembler.held_bytes() >= 0 && assembler.held_bytes() < payload_bytes) << assembler.held_bytes();
    if (!whole.ok() || !whole->has_value()) continue;
    CHECK_EQ((*whole)->payload_bytes, payload_bytes);
    CHECK_EQ(std::ssize((*whole)->payload), parts + 1);
    CHECK_EQ(assembler.held_bytes(), 0);
  }
  return 0;
}
