#include "common/wire/exchange_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace starring {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t kPayloadTag =
    v1::ExchangeMessage::kPayloadFieldNumber << 3 | WireFormatLite::WIRETYPE_LENGTH_DELIMITED;

// The pieces of a message as one stream, which protobuf reads without a copy. Protobuf counts in int, so a longer piece
// is handed over in portions.
class PieceStream final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit PieceStream(std::span<const BytePiece> pieces) : pieces_(pieces) {}

  bool Next(const void** data, int* size) override {
    for (; next_ < pieces_.size(); ++next_, offset_ = 0) {
      const BytePiece rest = pieces_[next_].subspan(offset_);
      if (rest.empty()) continue;
      const size_t length = std::min<size_t>(rest.size(), std::numeric_limits<int>::max());
      *data = rest.data();
      *size = static_cast<int>(length);
      offset_ += length;
      position_ += length;
      return true;
    }
    return false;
  }

  // Protobuf calls this only after Next, with at most the size that Next returned. So the bytes are in the piece that
  // was returned last, to which `next_` still points.
  void BackUp(int count) override {
    offset_ -= count;
    position_ -= count;
  }

  bool Skip(int count) override {
    const void* data;
    int size;
    while (count > 0) {
      if (!Next(&data, &size)) return false;
      if (size > count) BackUp(size - count);
      count -= std::min(size, count);
    }
    return true;
  }

  int64_t ByteCount() const override { return position_; }

 private:
  const std::span<const BytePiece> pieces_;
  size_t next_ = 0;
  size_t offset_ = 0;
  int64_t position_ = 0;
};

// Bytes [begin, end) of the message that `pieces` form.
std::vector<BytePiece> SubPieces(std::span<const BytePiece> pieces, int64_t begin, int64_t end) {
  std::vector<BytePiece> result;
  int64_t position = 0;
  for (const BytePiece piece : pieces) {
    const int64_t size = static_cast<int64_t>(piece.size());
    // `from` and `to` are positions in this piece. A piece outside [begin, end) gives an empty range.
    const int64_t from = std::max<int64_t>(begin - position, 0);
    const int64_t to = std::min(end - position, size);
    if (from < to) result.push_back(piece.subspan(from, to - from));
    position += size;
    if (position >= end) break;
  }
  return result;
}

int64_t TotalBytes(std::span<const BytePiece> pieces) {
  int64_t total = 0;
  for (const BytePiece piece : pieces) total += static_cast<int64_t>(piece.size());
  return total;
}

// Parses bytes [begin, end) and adds them to `fields`. Fields before and after the payload are parsed in two calls. The
// limit is checked before the bytes are copied: without a payload, all of a message's 64 MiB could be fields.
absl::Status MergeFields(std::span<const BytePiece> pieces, int64_t begin, int64_t end, v1::ExchangeMessage* fields) {
  if (end - begin > kMessageFieldsBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("exchange message has ", end - begin,
                                                   " bytes of fields besides its payload, at most ",
                                                   kMessageFieldsBytesMax, " are allowed"));
  }
  std::string bytes(end - begin, '\0');
  CopyPieces(SubPieces(pieces, begin, end), std::as_writable_bytes(std::span(bytes)));
  if (!fields->MergeFromString(bytes)) return absl::InvalidArgumentError("exchange message has malformed fields");
  return absl::OkStatus();
}

using Keepers = std::vector<std::shared_ptr<const void>>;

bool IsOfOneMessage(const v1::ExchangeMessage& a, const v1::ExchangeMessage& b) {
  return a.kind() == b.kind() && a.step() == b.step() && a.bucket() == b.bucket() && a.vector() == b.vector();
}

}  // namespace

std::string EncodeBeforePayload(const v1::ExchangeMessage& fields, int64_t payload_bytes) {
  CHECK(fields.payload().empty());
  CHECK(payload_bytes >= 0 && payload_bytes <= kMessagePayloadBytesMax) << payload_bytes;
  std::string bytes;
  fields.AppendToString(&bytes);
  // An empty payload has no field at all, as protobuf would write it. Tag and length take at most five bytes each.
  if (payload_bytes > 0) {
    uint8_t buffer[10];
    uint8_t* end = CodedOutputStream::WriteTagToArray(kPayloadTag, buffer);
    end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(payload_bytes), end);
    bytes.append(reinterpret_cast<const char*>(buffer), end - buffer);
  }
  return bytes;
}

absl::StatusOr<ReceivedMessage> DecodeMessage(std::span<const BytePiece> pieces) {
  const int64_t total = TotalBytes(pieces);
  if (total > kMessageBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange message has ", total, " bytes, at most ", kMessageBytesMax, " are allowed"));
  }
  // Walks over the fields of the message by tag and length. Only the payload is looked at: it becomes views of the
  // pieces. Protobuf parses what is before and after it, in MergeFields. No byte of the payload is read.
  PieceStream stream(pieces);
  CodedInputStream input(&stream);
  ReceivedMessage message;
  int64_t fields_begin = 0;  // of the fields not yet parsed
  bool has_payload = false;
  while (true) {
    const int64_t field_begin = input.CurrentPosition();
    const uint32_t tag = input.ReadTag();
    // ReadTag returns 0 at the end and for a malformed tag. The position tells which.
    if (tag == 0) {
      if (field_begin != total) return absl::InvalidArgumentError("exchange message has a malformed tag");
      break;
    }
    // Protobuf's own parser refuses a tag of more than five bytes; ReadTag does not.
    if (input.CurrentPosition() - field_begin > 5) {
      return absl::InvalidArgumentError("exchange message has a malformed tag");
    }
    if (tag != kPayloadTag) {
      if (!WireFormatLite::SkipField(&input, tag)) {
        return absl::InvalidArgumentError("exchange message ends inside a field");
      }
      continue;
    }
    // By protobuf's rules a second payload would replace the first. A message of thousands of empty payloads would cost
    // a search through all pieces for each of them.
    if (std::exchange(has_payload, true)) {
      return absl::InvalidArgumentError("exchange message has a second payload");
    }
    // The length is an int in at most five bytes, as protobuf itself reads it. ReadVarint32 would drop the upper bits
    // of 2^45, and a reader of any varint those beyond 64: both would take a wrong length for an empty payload.
    const int64_t length_begin = input.CurrentPosition();
    int length;
    if (!input.ReadVarintSizeAsInt(&length) || input.CurrentPosition() - length_begin > 5 ||
        length > total - input.CurrentPosition()) {
      return absl::InvalidArgumentError("exchange message ends inside its payload");
    }
    RETURN_IF_ERROR(MergeFields(pieces, fields_begin, field_begin, &message.fields));
    const int64_t payload_begin = input.CurrentPosition();
    message.payload = SubPieces(pieces, payload_begin, payload_begin + length);
    message.payload_bytes = length;
    // This cannot fail: `length` was compared with what is left.
    input.Skip(length);
    fields_begin = input.CurrentPosition();
  }
  RETURN_IF_ERROR(MergeFields(pieces, fields_begin, total, &message.fields));
  return message;
}

void CopyPieces(std::span<const BytePiece> pieces, std::span<std::byte> out) {
  size_t position = 0;
  for (const BytePiece piece : pieces) {
    CHECK_LE(position + piece.size(), out.size());
    if (!piece.empty()) std::memcpy(out.data() + position, piece.data(), piece.size());
    position += piece.size();
  }
  CHECK_EQ(position, out.size());
}

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
  // Part number and length come from the peer, `payload_bytes` comes from what this process knows about the slice. So a
  // peer cannot make it hold more than one payload.
  const int number = part.fields.part();
  if (number == 0) Clear();
  // The stream delivers in order, so a part that is out of order comes from a broken or hostile peer.
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
  // The bytes of each part stay in the transport's memory, which lives as long as the part's keeper.
  keepers_->push_back(part.keeper);
  if (++next_part_ < PartCount(payload_bytes)) return std::nullopt;
  message_.keeper = std::move(keepers_);
  std::optional<ReceivedMessage> whole = std::move(message_);
  Clear();
  return whole;
}

void SetProgress(const WorkState& state, v1::Progress* progress) {
  // Step, bucket and shard travel plus 1: a 0, which protobuf leaves out, then means that there is none.
  progress->set_phase(static_cast<int>(state.phase));
  progress->set_step(state.step + 1);
  progress->set_bucket(state.bucket + 1);
  progress->set_phase_ms(state.age.count());
  progress->set_silent_shard(state.silent_shard + 1);
}

WorkState GetProgress(const v1::Progress& progress) {
  const int phase = progress.phase() >= 0 && progress.phase() < kWorkPhaseCount ? progress.phase() : 0;
  // The age is cut at 2^40 ms, 35 years: reports convert it to nanoseconds, which would overflow.
  return {.phase = static_cast<WorkPhase>(phase),
          .step = std::max<int64_t>(progress.step(), 0) - 1,
          .bucket = std::max(progress.bucket(), 0) - 1,
          .age = std::chrono::milliseconds(std::clamp<int64_t>(progress.phase_ms(), 0, int64_t{1} << 40)),
          .silent_shard = std::max(progress.silent_shard(), 0) - 1};
}

}  // namespace starring
