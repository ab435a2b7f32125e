// Reads samples of a set of NumPy's arrays in the order of a training, as the loader does and as a plain loop does that
// reads them one by one, and prints samples per second. Neither finds any of them in memory at first.
//
//   cold_reads FOLDER loader|pread SAMPLES
//
// mapped.py runs it with less memory than the set has.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/data/normalization.h"
#include "worker/data/sampler.h"

namespace starring {
namespace {

constexpr int64_t kBatch = 64;

void DropFromMemory(int descriptor) {
  // The advice spares pages that are not written to the disk yet.
  sync();
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
}

void Print(absl::string_view mode, int64_t samples, absl::Duration time) {
  std::printf("%.*s %.1f\n", static_cast<int>(mode.size()), mode.data(),
              static_cast<double>(samples) / absl::ToDoubleSeconds(time));
}

void ReadOneByOne(const Dataset& set, int descriptor, int64_t samples) {
  struct stat facts = {};
  CHECK_EQ(fstat(descriptor, &facts), 0);
  const int64_t head = facts.st_size - set.count * set.image_bytes();
  Sampler sampler({.sample_count = set.count, .global_batch = kBatch});
  std::vector<uint8_t> batch(static_cast<size_t>(kBatch * set.image_bytes()));
  DropFromMemory(descriptor);
  const absl::Time begin = absl::Now();
  for (int64_t step = 0; step < samples / kBatch; ++step) {
    uint8_t* out = batch.data();
    for (const int64_t sample : sampler.Plan(step, 0).samples) {
      CHECK_EQ(pread(descriptor, out, static_cast<size_t>(set.image_bytes()), head + sample * set.image_bytes()),
               set.image_bytes());
      out += set.image_bytes();
    }
  }
  // Both loops read whole batches only.
  Print("pread", samples / kBatch * kBatch, absl::Now() - begin);
}

void Load(const Dataset& set, int descriptor, int64_t samples) {
  const Normalization normalization = NormalizationOf(set, Normalize::kNone);
  DropFromMemory(descriptor);
  const absl::Time begin = absl::Now();
  auto loader = Loader::Create({.dataset = &set,
                                .sampler = {.sample_count = set.count, .global_batch = kBatch},
                                .normalization = normalization,
                                .end_step = samples / kBatch});
  CHECK_OK(loader);
  for (int64_t step = 0; step < samples / kBatch; ++step) CHECK_OK((*loader)->Next());
  Print("loader", samples / kBatch * kBatch, absl::Now() - begin);
}

int Main(int argc, char** argv) {
  CHECK_EQ(argc, 4);
  const std::string folder = argv[1];
  const auto sets = LoadDataset({.name = "npy", .data_dir = folder});
  CHECK_OK(sets);
  // The samples of an array that was copied would be in memory already.
  CHECK(sets->train.mapped != nullptr);
  const int descriptor = open((folder + "/train_images.npy").c_str(), O_RDONLY | O_CLOEXEC);
  CHECK_GE(descriptor, 0);
  const bool loads = absl::string_view(argv[2]) == "loader";
  (loads ? Load : ReadOneByOne)(sets->train, descriptor, std::strtoll(argv[3], nullptr, 10));
  close(descriptor);
  return 0;
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) { return starring::Main(argc, argv); }
