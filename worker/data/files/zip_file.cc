#include "worker/data/files/zip_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace starring {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kZip64End = 0x06064b50, kZip64Locator = 0x07064b50;
constexpr int64_t kLocalHeaderBytes = 30, kEntryBytes = 46, kEndBytes = 22, kZip64EndBytes = 56, kLocatorBytes = 20;
// The length of the comment is a field of 16 bits.
constexpr int64_t kCommentBytesMax = 65535;
constexpr uint32_t kIn64Bits = 0xffffffff;  // the number is in the zip64 field
constexpr uint16_t kZip64Field = 1;
constexpr uint16_t kEncrypted = 1;  // a bit of the flags
constexpr uint16_t kStored = 0, kDeflated = 8;
constexpr size_t kBufferBytes = 256 << 10;
constexpr int kRawWindow = -15;  // a window of 32 KiB, and no header

// Little-endian.
uint64_t Number(std::span<const uint8_t> bytes, size_t offset, size_t size) {
  uint64_t number = 0;
  for (size_t i = size; i-- > 0;) number = number << 8 | bytes[offset + i];
  return number;
}
uint16_t Number16(std::span<const uint8_t> bytes, size_t offset) {
  return static_cast<uint16_t>(Number(bytes, offset, 2));
}
uint32_t Number32(std::span<const uint8_t> bytes, size_t offset) {
  return static_cast<uint32_t>(Number(bytes, offset, 4));
}

// The value of a 64-bit number that counts bytes; what no file can have becomes the largest.
int64_t Bytes64(uint64_t number) {
  return static_cast<int64_t>(std::min<uint64_t>(number, std::numeric_limits<int64_t>::max()));
}

// Takes the numbers that an entry leaves to its zip64 field, in the order in which they are there.
class Zip64Field {
 public:
  explicit Zip64Field(std::span<const uint8_t> extra) {
    // Fields of an extra part: kind, size, content.
    while (extra.size() >= 4) {
      const size_t size = Number16(extra, 2);
      // A damaged part ends the search. Take then fails if the entry needs the field.
      if (size > extra.size() - 4) return;
      if (Number16(extra, 0) == kZip64Field) {
        left_ = extra.subspan(4, size);
        return;
      }
      extra = extra.subspan(4 + size);
    }
  }

  // False if the field has no such number.
  bool Take(uint32_t in_32_bits, int64_t* number) {
    *number = in_32_bits;
    if (in_32_bits != kIn64Bits) return true;
    if (left_.size() < 8) return false;
    *number = Bytes64(Number(left_, 0, 8));
    left_ = left_.subspan(8);
    return true;
  }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace

// A part of the file, as it is there.
class ZipFile::Stored final : public ByteStream {
 public:
  Stored(const ZipFile* zip, const Member* member, int64_t begin)
      : zip_(*zip), member_(*member), path_(absl::StrCat(zip->path_, ":", member->name)), at_(begin) {}

  absl::StatusOr<int64_t> Read(std::span<uint8_t> out) override {
    const auto bytes = static_cast<size_t>(std::min<int64_t>(std::ssize(out), member_.bytes - read_));
    RETURN_IF_ERROR(zip_.ReadAt(at_, out.first(bytes)));
    // zlib counts in 32 bits, crc32_z in size_t.
    crc32_ = static_cast<uint32_t>(crc32_z(crc32_, out.data(), bytes));
    at_ += static_cast<int64_t>(bytes);
    read_ += static_cast<int64_t>(bytes);
    // A short answer is the member's end. Before that the checksum covers only a part.
    if (bytes < out.size() && crc32_ != member_.crc32) {
      return absl::DataLossError(absl::StrCat(path_, " has the checksum ", absl::Hex(crc32_), ", expected ",
                                              absl::Hex(member_.crc32), ": copy or save the file again"));
    }
    return static_cast<int64_t>(bytes);
  }
  int64_t size_bytes_max() const override { return member_.bytes; }
  const std::string& path() const override { return path_; }

 private:
  const ZipFile& zip_;
  const Member& member_;
  const std::string path_;
  int64_t at_;
  int64_t read_ = 0;
  uint32_t crc32_ = 0;
};

class ZipFile::Deflated final : public ByteStream {
 public:
  Deflated(const ZipFile* zip, const Member* member, int64_t begin)
      : zip_(*zip),
        member_(*member),
        path_(absl::StrCat(zip->path_, ":", member->name)),
        at_(begin),
        packed_left_(member->packed_bytes),
        buffer_(static_cast<size_t>(std::clamp<int64_t>(member->packed_bytes, 1, kBufferBytes))) {}
  ~Deflated() override { inflateEnd(&stream_); }

  bool Start() { return inflateInit2(&stream_, kRawWindow) == Z_OK; }

  absl::StatusOr<int64_t> Read(std::span<uint8_t> out) override {
    size_t written = 0;
    while (written < out.size() && !is_over_) {
      RETURN_IF_ERROR(FillInput());
      // zlib counts in 32 bits; an array may have more bytes.
      const auto room = static_cast<uInt>(std::min<size_t>(out.size() - written, 1u << 30));
      stream_.next_out = out.data() + written;
      stream_.avail_out = room;
      const uInt ready = stream_.avail_in;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      const size_t bytes = room - stream_.avail_out;
      crc32_ = static_cast<uint32_t>(crc32_z(crc32_, out.data() + written, bytes));
      written += bytes;
      read_ += static_cast<int64_t>(bytes);
      is_over_ = code == Z_STREAM_END;
      if (code == Z_MEM_ERROR) return absl::ResourceExhaustedError(absl::StrCat(path_, ": no memory to unzip it"));
      // Where the packed bytes run out, inflate makes no progress and reports Z_BUF_ERROR. Without this test the loop
      // would not end.
      const bool is_stuck = bytes == 0 && stream_.avail_in == ready && !is_over_;
      // A member that unpacks to more than the directory promises is refused before the rest is unpacked.
      if ((code != Z_OK && code != Z_BUF_ERROR && !is_over_) || is_stuck || read_ > member_.bytes) {
        return absl::DataLossError(absl::StrCat(path_, " has damaged deflate data: copy or save the file again"));
      }
    }
    if (written < out.size() && (read_ != member_.bytes || crc32_ != member_.crc32)) {
      return absl::DataLossError(absl::StrCat(path_, " has ", read_, " bytes with the checksum ", absl::Hex(crc32_),
                                              ", expected ", member_.bytes, " with ", absl::Hex(member_.crc32),
                                              ": copy or save the file again"));
    }
    return static_cast<int64_t>(written);
  }
  int64_t size_bytes_max() const override {
    // A damaged directory may claim any length. The packed bytes bound what can come.
    return std::min(member_.bytes, member_.packed_bytes > std::numeric_limits<int64_t>::max() / kDeflateRatioMax
                                       ? std::numeric_limits<int64_t>::max()
                                       : member_.packed_bytes * kDeflateRatioMax);
  }
  const std::string& path() const override { return path_; }

 private:
  absl::Status FillInput() {
    if (stream_.avail_in > 0 || packed_left_ == 0) return absl::OkStatus();
    const auto bytes = static_cast<size_t>(std::min<int64_t>(std::ssize(buffer_), packed_left_));
    RETURN_IF_ERROR(zip_.ReadAt(at_, std::span(buffer_).first(bytes)));
    at_ += static_cast<int64_t>(bytes);
    packed_left_ -= static_cast<int64_t>(bytes);
    stream_.next_in = buffer_.data();
    stream_.avail_in = static_cast<uInt>(bytes);
    return absl::OkStatus();
  }

  const ZipFile& zip_;
  const Member& member_;
  const std::string path_;
  int64_t at_;
  int64_t packed_left_;
  std::vector<uint8_t> buffer_;
  z_stream stream_{};
  int64_t read_ = 0;
  uint32_t crc32_ = 0;
  bool is_over_ = false;
};

ZipFile::~ZipFile() { close(descriptor_); }

absl::StatusOr<std::unique_ptr<ZipFile>> ZipFile::Open(const std::string& path) {
  // With O_NONBLOCK the open of a pipe without a writer returns at once, and the pipe is refused below.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, " cannot be opened"));
  struct stat facts {};
  const bool known = fstat(descriptor, &facts) == 0;
  // From here on the destructor closes the descriptor on every return.
  std::unique_ptr<ZipFile> zip(new ZipFile(path, descriptor, known ? facts.st_size : 0));
  if (!known || !S_ISREG(facts.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file: give the data file itself"));
  }
  RETURN_IF_ERROR(zip->ReadDirectory());
  return zip;
}

absl::Status ZipFile::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(path_, " is no zip archive that can be read: ", what,
                                          ": copy it again, or write it again with numpy.savez"));
}

absl::Status ZipFile::ReadAt(int64_t offset, std::span<uint8_t> out) const {
  size_t done = 0;
  while (done < out.size()) {
    // pread moves no file position, so streams of several members can take turns.
    const ssize_t bytes = pread(descriptor_, out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (bytes < 0 && errno == EINTR) continue;  // a signal to stop interrupts a read
    if (bytes < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path_, " cannot be read"));
    if (bytes == 0) return Damaged("it has become shorter while it was read");
    done += static_cast<size_t>(bytes);
  }
  return absl::OkStatus();
}

absl::Status ZipFile::ReadDirectory() {
  // The directory's end is followed by a comment only.
  const int64_t tail_bytes = std::min(file_bytes_, kEndBytes + kCommentBytesMax);
  std::vector<uint8_t> tail(static_cast<size_t>(tail_bytes));
  RETURN_IF_ERROR(ReadAt(file_bytes_ - tail_bytes, tail));
  int64_t end = tail_bytes - kEndBytes;
  // The comment may contain the record's signature. Only the true record's comment ends with the file.
  while (end >= 0 && (Number32(tail, static_cast<size_t>(end)) != kEnd ||
                      end + kEndBytes + Number16(tail, static_cast<size_t>(end) + 20) != tail_bytes)) {
    --end;
  }
  if (end < 0) return Damaged("it has no directory at its end");
  const auto record = std::span<const uint8_t>(tail).subspan(static_cast<size_t>(end));
  constexpr uint16_t kIn16Bits = 0xffff;  // the number is in the zip64 directory
  for (const size_t disk : {Number16(record, 4), Number16(record, 6)}) {
    if (disk != 0 && disk != kIn16Bits) return Damaged("it is one of several parts");
  }
  int64_t count = Number16(record, 10);
  int64_t bytes = Number32(record, 12);
  int64_t begin = Number32(record, 16);
  const int64_t end_in_file = file_bytes_ - tail_bytes + end;
  // A large archive has a locator directly before the record, which leads to the numbers of 64 bits.
  if (std::array<uint8_t, kLocatorBytes> locator{}; end_in_file >= kLocatorBytes) {
    RETURN_IF_ERROR(ReadAt(end_in_file - kLocatorBytes, locator));
    if (Number32(locator, 0) == kZip64Locator) {
      const int64_t at = Bytes64(Number(locator, 8, 8));
      std::array<uint8_t, kZip64EndBytes> large{};
      if (at > end_in_file - kZip64EndBytes) return Damaged("its zip64 directory is outside the file");
      RETURN_IF_ERROR(ReadAt(at, large));
      if (Number32(large, 0) != kZip64End) return Damaged("its zip64 directory is not where it should be");
      count = Bytes64(Number(large, 32, 8));
      bytes = Bytes64(Number(large, 40, 8));
      begin = Bytes64(Number(large, 48, 8));
    }
  }
  if (count > kZipMembersMax || bytes > kZipDirectoryBytesMax) {
    return Damaged(absl::StrCat("its directory has ", count, " members and ", bytes, " bytes, expected at most ",
                                kZipMembersMax, " and ", kZipDirectoryBytesMax));
  }
  // The sum of both numbers could overflow, so the comparison subtracts.
  if (begin > file_bytes_ || bytes > file_bytes_ - begin) return Damaged("its directory is outside the file");
  std::vector<uint8_t> directory(static_cast<size_t>(bytes));
  RETURN_IF_ERROR(ReadAt(begin, directory));
  return ReadEntries(directory, count);
}

absl::Status ZipFile::ReadEntries(std::span<const uint8_t> directory, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (std::ssize(directory) < kEntryBytes || Number32(directory, 0) != kEntry) {
      return Damaged(absl::StrCat("its directory says ", count, " members, and has ", i));
    }
    const size_t name_bytes = Number16(directory, 28), extra_bytes = Number16(directory, 30);
    const size_t entry_bytes = kEntryBytes + name_bytes + extra_bytes + Number16(directory, 32);
    if (entry_bytes > directory.size()) return Damaged("its directory ends early");
    Member member{.flags = Number16(directory, 8), .method = Number16(directory, 10), .crc32 = Number32(directory, 16)};
    const auto name = directory.subspan(kEntryBytes, name_bytes);
    member.name.assign(name.begin(), name.end());
    Zip64Field field(directory.subspan(kEntryBytes + name_bytes, extra_bytes));
    // This is the order of the numbers in the zip64 field (APPNOTE 4.5.3), not of those in the entry.
    if (!field.Take(Number32(directory, 24), &member.bytes) ||
        !field.Take(Number32(directory, 20), &member.packed_bytes) ||
        !field.Take(Number32(directory, 42), &member.header)) {
      return Damaged(absl::StrCat("member ", absl::CHexEscape(member.name), " has no zip64 sizes"));
    }
    // Another reader might take the other one. The search is linear, and kZipMembersMax bounds its square.
    if (Has(member.name)) return Damaged(absl::StrCat("it has two members ", absl::CHexEscape(member.name)));
    members_.push_back(std::move(member));
    directory = directory.subspan(entry_bytes);
  }
  return absl::OkStatus();
}

std::vector<std::string> ZipFile::names() const {
  std::vector<std::string> names;
  for (const Member& member : members_) names.push_back(member.name);
  return names;
}

const ZipFile::Member* ZipFile::Find(absl::string_view name) const {
  const auto member = std::ranges::find(members_, name, &Member::name);
  return member == members_.end() ? nullptr : &*member;
}

absl::StatusOr<std::unique_ptr<ByteStream>> ZipFile::OpenMember(absl::string_view name) const {
  const Member* const member = Find(name);
  if (member == nullptr) return absl::NotFoundError(absl::StrCat(path_, " has no member ", name));
  const auto damaged = [&](absl::string_view what) { return Damaged(absl::StrCat("member ", name, " ", what)); };
  if ((member->flags & kEncrypted) != 0) return damaged("is encrypted");
  if (member->method != kStored && member->method != kDeflated) {
    return damaged(absl::StrCat("is compressed by method ", member->method, ", expected 0 (stored) or 8 (deflate)"));
  }
  if (member->header > file_bytes_ - kLocalHeaderBytes) return damaged("is outside the file");
  std::array<uint8_t, kLocalHeaderBytes> header{};
  RETURN_IF_ERROR(ReadAt(member->header, header));
  if (Number32(header, 0) != kLocalHeader) return damaged("is not where the directory says");
  // The lengths of name and extra part come from the local header: the directory's extra part may have another length.
  const int64_t begin = member->header + kLocalHeaderBytes + Number16(header, 26) + Number16(header, 28);
  if (begin > file_bytes_ || member->packed_bytes > file_bytes_ - begin) return damaged("is outside the file");
  if (member->method == kStored) {
    // Stored reads `bytes` bytes, and the check above has covered `packed_bytes`.
    if (member->bytes != member->packed_bytes) return damaged("is stored, and has two sizes");
    return std::make_unique<Stored>(this, member, begin);
  }
  auto stream = std::make_unique<Deflated>(this, member, begin);
  if (!stream->Start()) return absl::ResourceExhaustedError(absl::StrCat(stream->path(), ": no memory to unzip it"));
  return stream;
}

}  // namespace starring
