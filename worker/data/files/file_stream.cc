#include "worker/data/files/file_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/host/log.h"

namespace starring {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
constexpr int kGzipWindow = 15 + 16;  // a window of 32 KiB, and gzip's header instead of zlib's

}  // namespace

struct FileStream::Inflater {
  z_stream stream{};
  // From the first byte of a member to its end mark. A file that ends there is truncated.
  bool inside_member = false;
  bool after_member = false;
  ~Inflater() { inflateEnd(&stream); }
};

FileStream::FileStream(std::string path, int descriptor, int64_t file_bytes)
    : path_(std::move(path)),
      descriptor_(descriptor),
      file_bytes_(file_bytes),
      buffer_(std::clamp<size_t>(file_bytes, 1, kBufferBytes)) {}

FileStream::~FileStream() { close(descriptor_); }

absl::StatusOr<std::unique_ptr<FileStream>> FileStream::Open(const std::string& path) {
  // With O_NONBLOCK the open of a pipe without a writer returns at once, and the pipe is refused below.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, " cannot be opened"));
  struct stat facts {};
  const bool known = fstat(descriptor, &facts) == 0;
  if (!known || !S_ISREG(facts.st_mode)) {
    close(descriptor);
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file: give the data file itself"));
  }
  std::unique_ptr<FileStream> stream(new FileStream(path, descriptor, facts.st_size));
  RETURN_IF_ERROR(stream->FillInput());
  // The content decides, and not the name: a file that was unzipped under its old name is read as well.
  if (stream->input_end_ >= 2 && stream->buffer_[0] == 0x1f && stream->buffer_[1] == 0x8b) {
    stream->inflater_ = std::make_unique<Inflater>();
    if (inflateInit2(&stream->inflater_->stream, kGzipWindow) != Z_OK) {
      return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory to unzip it"));
    }
  }
  return stream;
}

int64_t FileStream::size_bytes_max() const { return inflater_ ? file_bytes_ * kDeflateRatioMax : file_bytes_; }

absl::StatusOr<MappedRest> FileStream::MapRest() const {
  if (inflater_ != nullptr || file_bytes_ == 0) return MappedRest();
  ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::Map(path_, descriptor_, file_bytes_));
  return MappedRest{.file = std::move(file), .offset = consumed_};
}

absl::StatusOr<int64_t> FileStream::Read(std::span<uint8_t> out) { return inflater_ ? ReadGzip(out) : ReadPlain(out); }

// Reads the next bytes if all were consumed. Afterwards input_begin_ == input_end_ only at the end of the file.
absl::Status FileStream::FillInput() {
  if (input_begin_ < input_end_) return absl::OkStatus();
  ssize_t bytes = 0;
  do {
    bytes = read(descriptor_, buffer_.data(), buffer_.size());
  } while (bytes < 0 && errno == EINTR);  // a signal to stop interrupts a read
  if (bytes < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path_, " cannot be read"));
  input_begin_ = 0;
  input_end_ = static_cast<size_t>(bytes);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FileStream::ReadPlain(std::span<uint8_t> out) {
  size_t written = 0;
  while (written < out.size()) {
    RETURN_IF_ERROR(FillInput());
    const size_t bytes = std::min(out.size() - written, input_end_ - input_begin_);
    if (bytes == 0) break;
    std::memcpy(out.data() + written, buffer_.data() + input_begin_, bytes);
    input_begin_ += bytes;
    written += bytes;
  }
  consumed_ += static_cast<int64_t>(written);
  return static_cast<int64_t>(written);
}

// Zeros fill up blocks of tapes and of some downloads. gunzip leaves them out too, and warns.
absl::Status FileStream::SkipZeros() {
  int64_t zeros = 0;
  while (input_begin_ < input_end_ && buffer_[input_begin_] == 0) {
    ++input_begin_;
    ++zeros;
    RETURN_IF_ERROR(FillInput());
  }
  if (zeros > 0 && input_begin_ == input_end_) {
    Log(absl::StrCat(path_, " has ", zeros, " zero bytes after its gzip data: they are left out"), LogLevel::kWarning);
  }
  return absl::OkStatus();
}

// A gzip file is a sequence of one or more members (RFC 1952, section 2.2). A file may end between two members, not
// inside one.
absl::StatusOr<int64_t> FileStream::ReadGzip(std::span<uint8_t> out) {
  z_stream& stream = inflater_->stream;
  size_t written = 0;
  while (written < out.size()) {
    RETURN_IF_ERROR(FillInput());
    if (inflater_->after_member) RETURN_IF_ERROR(SkipZeros());
    if (input_begin_ == input_end_) {
      if (!inflater_->inside_member) break;
      return absl::DataLossError(absl::StrCat(path_, " is truncated: its gzip data ends after ", file_bytes_,
                                              " bytes, before the end mark: copy or download it again"));
    }
    inflater_->inside_member = true;
    inflater_->after_member = false;
    // zlib counts in 32 bits; an image array may have more bytes.
    const auto room = static_cast<uInt>(std::min<size_t>(out.size() - written, 1u << 30));
    const auto ready = static_cast<uInt>(input_end_ - input_begin_);
    stream.next_in = buffer_.data() + input_begin_;
    stream.avail_in = ready;
    stream.next_out = out.data() + written;
    stream.avail_out = room;
    // The call consumes input, or fills `out`, or both. Z_BUF_ERROR means that it could do neither; the next turn
    // brings input or room.
    const int code = inflate(&stream, Z_NO_FLUSH);
    input_begin_ += ready - stream.avail_in;
    written += room - stream.avail_out;
    if (code == Z_STREAM_END) {
      inflater_->inside_member = false;
      inflater_->after_member = true;
      // Bytes after the end of a member must begin another one. If they do not, the next inflate refuses them.
      inflateReset(&stream);
    } else if (code == Z_MEM_ERROR) {
      return absl::ResourceExhaustedError(absl::StrCat(path_, ": no memory to unzip it"));
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      return absl::DataLossError(absl::StrCat(path_, " has damaged gzip data (", stream.msg ? stream.msg : zError(code),
                                              "): copy or download it again"));
    }
  }
  return static_cast<int64_t>(written);
}

}  // namespace starring
