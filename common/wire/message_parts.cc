#include "common/wire/message_parts.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/limits.h"

namespace starring {
namespace {

using Keepers = std::vector<std::shared_ptr<const void>>;

bool IsOfOneMessage(const v1::ExchangeMessage& a, const v1::ExchangeMessage& b) {
  return a.kind() == b.kind() && a.step() == b.step() && a.bucket() == b.bucket() && a.vector() == b.vector();
}

}  // namespace

int PartCount(int64_t payload_bytes) {
  CHECK_GE(payload_bytes, 0);
  return static_cast<int>(
      std::max<int64_t>((payload_bytes + kMessagePayloadBytesMax - 1) / kMessagePayloadBytesMax, 1));
}

int64_t PartBegin(int part) { return part * kMessagePayloadBytesMax; }

int64_t PartBytes(int64_t payload_bytes, int part) {
  CHECK(part >= 0 && part < PartCount(payload_bytes)) << part;
  return std::min(payload_bytes - PartBegin(part), kMessagePayloadBytesMax);
}

void PartAssembler::Clear() {
  message_ = {};
  keepers_.reset();
  next_part_ = 0;
}

absl::StatusOr<std::optional<ReceivedMessage>> PartAssembler::Add(const ReceivedMessage& part, int64_t payload_bytes) {
  const int number = part.fields.part();
  if (number == 0) Clear();
  if (number != next_part_ || (number > 0 && !IsOfOneMessage(part.fields, message_.fields)) ||
      number >= PartCount(payload_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("part ", number, " of a payload of ", payload_bytes,
                                                   " bytes, expected part ", next_part_, " of ",
                                                   PartCount(payload_bytes)));
  }
  if (const int64_t expected = PartBytes(payload_bytes, number); part.payload_bytes != expected) {
    return absl::InvalidArgumentError(absl::StrCat("part ", number, " of a payload of ", payload_bytes, " bytes has ",
                                                   part.payload_bytes, ", expected ", expected));
  }
  if (number == 0) {
    message_.fields = part.fields;
    keepers_ = std::make_shared<Keepers>();
  }
  message_.payload.insert(message_.payload.end(), part.payload.begin(), part.payload.end());
  message_.payload_bytes += part.payload_bytes;
  keepers_->push_back(part.keeper);
  if (++next_part_ < PartCount(payload_bytes)) return std::nullopt;
  message_.keeper = std::move(keepers_);
  std::optional<ReceivedMessage> whole = std::move(message_);
  Clear();
  return whole;
}

}  // namespace starring
