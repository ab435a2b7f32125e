// A file in this process's address space, without a copy: the processes of a machine share the pages that the kernel
// keeps of it, and it may be larger than memory.
//
// The kernel answers a read behind the end of a file that was cut, or of a part that the disk cannot deliver, with
// SIGBUS. A handler puts zeros there and notes it, and Check reports it. Other SIGBUS go to the handler before it.
//
// Thread safety: any thread.
#ifndef STARRING_WORKER_DATA_FILES_MAPPED_FILE_H_
#define STARRING_WORKER_DATA_FILES_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace starring {

struct MappedFileEntry;  // of the table in which the handler looks

class MappedFile {
 public:
  // Maps the whole file, of `size_bytes` above 0. `descriptor` stays the caller's. ResourceExhausted if this process
  // has kMappedFilesMax of them or the system grants no more addresses (ulimit -v).
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Map(const std::string& path, int descriptor,
                                                               int64_t size_bytes);
  // Map does it, too; again, where another library may have taken the signal since (Python's faulthandler does).
  static void CatchBusErrors();
  ~MappedFile();  // no thread may read `bytes` any more
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  static constexpr size_t kMappedFilesMax = 256;  // each has a descriptor

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }

  // Bytes are about to be read in no order, and the file may not stay in memory: reads no more of it than is asked for.
  void ExpectRandomReads() const;
  // Starts to read `count` bytes from `offset` on from the disk, and does not wait.
  void AskAhead(int64_t offset, int64_t count) const;

  // Reads `out` from `offset` on by a system call, for a pass over many bytes. Where the file has ended, `out` gets
  // zeros, and Check reports it.
  void ReadAt(int64_t offset, std::span<uint8_t> out) const;

  // DataLoss, with both sizes, if the file has another size or time of its last change than when it was mapped, or if
  // bytes of it could not be read. All bytes that were read before are those of the file as it was mapped if this is
  // OK.
  absl::Status Check() const;

 private:
  MappedFile(std::string path, int descriptor, const uint8_t* data, int64_t size_bytes, int64_t changed_ns,
             MappedFileEntry* entry);

  const std::string path_;
  const int descriptor_;
  const uint8_t* const data_;
  const int64_t size_bytes_;
  const int64_t changed_ns_;
  MappedFileEntry* const entry_;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_MAPPED_FILE_H_
