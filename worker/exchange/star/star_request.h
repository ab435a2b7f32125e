// One request of a worker to one shard, from the trainer's call to the answer.
#ifndef STARRING_WORKER_EXCHANGE_STAR_STAR_REQUEST_H_
#define STARRING_WORKER_EXCHANGE_STAR_STAR_REQUEST_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

#include "common/wire/exchange_message.h"

namespace starring {

struct StarRequest {
  static constexpr int kNoBucket = -1;

  int shard = 0;
  int lane = 0;
  // StarClient::Wait waits for a whole group: the gradients of one bucket (its number), or all requests that are not
  // gradients (kNoBucket).
  int group = kNoBucket;
  v1::ExchangeMessage fields;
  std::span<const std::byte> payload;  // sent from where it lies
  std::span<std::byte> destination;    // where the answer's payload goes; it must have this length
  // If fields.shared(): neither payload nor answer travel, and this is the length of the answer.
  int64_t shared_answer_bytes = 0;
  v1::SharedMemory* parameter_memory = nullptr;  // if not null, takes what the answer says

  // Every slice that gRPC holds of `payload` shares this: while the count is above 1, gRPC may still read there.
  std::shared_ptr<const void> payload_use = std::make_shared<char>();
  std::chrono::steady_clock::time_point since;  // posted, or first sent
  bool was_sent = false;
  int parts_received = 0;  // of the answer; see message_parts.h
  int64_t posted_ns = 0;   // TraceNow, if there is a trace
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_STAR_REQUEST_H_
