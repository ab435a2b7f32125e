// Samples per second of worker/data, and the limits that it is compared with. bench/ddp/dataloader.py measures
// PyTorch's loader.
//
//   bazel run //bench:loader_bench -- --benchmark_filter=Loader
//
// With depth 0 the thread that asks fills the batch, so the time is one thread's. Otherwise other threads fill, and the
// time is that of the slower side if there are enough cores. Every data set has 60000 images, so that samples come from
// memory and not from the cache. A batch is 64 samples.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "benchmark/benchmark.h"
#include "common/arithmetic/instruction_set.h"
#include "common/base/check.h"
#include "worker/data/crop_flip.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/data/normalization.h"
#include "worker/data/sampler.h"

namespace starring {
namespace {

constexpr int64_t kBatch = 64;

// The data set is made when a benchmark first needs it: with --benchmark_filter most are not needed.
const Dataset& Mnist() {
  static const Dataset* const dataset = [] {
    DatasetOptions options{.name = "synthetic", .synthetic_test_count = 1};
    return new Dataset(std::move(LoadDataset(options)->train));
  }();
  return *dataset;
}

const Dataset& Cifar() {
  static const Dataset* const dataset = [] {
    DatasetOptions options{.name = "synthetic", .synthetic_test_count = 1};
    options.synthetic_height = 32;
    options.synthetic_width = 32;
    options.synthetic_channels = 3;
    return new Dataset(std::move(LoadDataset(options)->train));
  }();
  return *dataset;
}

void CountSamples(benchmark::State& state, const Dataset& dataset) {
  const int64_t samples = state.iterations() * kBatch;
  state.SetItemsProcessed(samples);
  // For each value, one byte is read and four are written.
  state.SetBytesProcessed(samples * dataset.image_bytes() * 5);
}

void RunLoader(benchmark::State& state, const Dataset& dataset, Loader::Augment augment) {
  // No benchmark takes as many batches as end_step allows, so the loader never ends.
  auto loader = Loader::Create({.dataset = &dataset,
                                .sampler = {.sample_count = dataset.count, .global_batch = kBatch},
                                .normalization = NormalizationOf(dataset),
                                .augment = augment,
                                .threads = static_cast<int>(state.range(0)),
                                .prefetch_depth = static_cast<int>(state.range(1)),
                                .end_step = int64_t{1} << 40});
  CHECK_OK(loader.status());
  for (auto _ : state) benchmark::DoNotOptimize((*loader)->Next().value()->images.data());
  CountSamples(state, dataset);
}

void BM_LoaderMnist(benchmark::State& state) { RunLoader(state, Mnist(), Loader::Augment::kNone); }
void BM_LoaderCifarCropFlip(benchmark::State& state) { RunLoader(state, Cifar(), Loader::Augment::kCropFlip); }
BENCHMARK(BM_LoaderMnist)->ArgNames({"threads", "depth"})->Args({1, 0})->Args({1, 3})->Args({2, 4})->UseRealTime();
BENCHMARK(BM_LoaderCifarCropFlip)
    ->ArgNames({"threads", "depth"})
    ->Args({1, 0})
    ->Args({1, 3})
    ->Args({2, 4})
    ->UseRealTime();

// MNIST's and CIFAR-10's sizes, and 5,000 images of 64 x 64 x 3 numbers. `type` is NumPy's, or the name of a data set.
struct FileKind {
  const char* type;
  int64_t count, side, channels, value_bytes;
};
constexpr FileKind kFileKinds[] = {
    {"|u1", 60000, 28, 1, 1}, {"|u1", 60000, 32, 3, 1},     {"<f4", 5000, 64, 3, 4},          {"<f2", 5000, 64, 3, 2},
    {"<f8", 5000, 64, 3, 8},  {"cifar10", 60000, 32, 3, 1}, {"emnist-mnist", 60000, 28, 1, 1}};

// A file of `count` samples of `bytes` after its `head`.
void WriteSamples(const std::string& path, const std::string& head, int64_t count, int64_t bytes) {
  std::ofstream file(path, std::ios::binary);
  file << head;
  const std::string sample(static_cast<size_t>(bytes), '\1');
  for (int64_t i = 0; i < count; ++i) file << sample;
}

void WriteNpy(const std::string& path, const FileKind& kind, const std::string& shape, int64_t bytes) {
  std::string head =
      absl::StrCat("{'descr': '", kind.type, "', 'fortran_order': False, 'shape': (", kind.count, ",", shape, "), }");
  head.append(118 - head.size(), ' ');  // a header of 128 bytes, as NumPy's
  WriteSamples(path, absl::StrCat(absl::string_view("\x93NUMPY\1\0\x76\0", 10), head), kind.count, bytes);
}

// IDX: an array of bytes, `count` of `sizes` each.
void WriteIdx(const std::string& path, int64_t count, const std::vector<int64_t>& sizes) {
  std::string head = {0, 0, 8, static_cast<char>(1 + sizes.size())};
  const auto append = [&head](int64_t size) {
    for (int shift = 24; shift >= 0; shift -= 8) head.push_back(static_cast<char>(size >> shift));
  };
  append(count);
  int64_t bytes = 1;
  for (const int64_t size : sizes) {
    append(size);
    bytes *= size;
  }
  WriteSamples(path, head, count, bytes);
}

TrainAndTest FromFiles(const FileKind& kind, MapData map) {
  const std::string folder = std::filesystem::temp_directory_path().append("starring_loader_bench");
  std::filesystem::create_directories(folder);
  const int64_t values = kind.side * kind.side * kind.channels;
  DatasetOptions options{.name = kind.type, .data_dir = folder, .map_data = map};
  if (options.name == "cifar10") {
    for (int batch = 1; batch <= 5; ++batch) {
      WriteSamples(absl::StrCat(folder, "/data_batch_", batch, ".bin"), "", kind.count / 5, 1 + values);
    }
    WriteSamples(folder + "/test_batch.bin", "", 1, 1 + values);
  } else if (options.name == "emnist-mnist") {
    for (const auto& [set, count] : {std::pair("train", kind.count), std::pair("test", int64_t{1})}) {
      WriteIdx(absl::StrCat(folder, "/emnist-mnist-", set, "-images-idx3-ubyte"), count, {kind.side, kind.side});
      WriteIdx(absl::StrCat(folder, "/emnist-mnist-", set, "-labels-idx1-ubyte"), count, {});
    }
  } else {
    options.name = "npy";
    options.test_fraction = 0.001;
    WriteNpy(folder + "/train_images.npy", kind, absl::StrCat(kind.side, ",", kind.side, ",", kind.channels),
             values * kind.value_bytes);
    WriteNpy(folder + "/train_labels.npy", {.type = "|u1", .count = kind.count}, "", 1);
  }
  auto sets = LoadDataset(options);
  CHECK_OK(sets);
  std::filesystem::remove_all(folder);  // a mapping keeps its file
  return *std::move(sets);
}

// Args: the kind of file, and whether it is mapped. One thread fills.
void BM_LoaderOfFile(benchmark::State& state) {
  const FileKind& kind = kFileKinds[state.range(0)];
  // By default float64 is copied.
  const MapData mapped = kind.value_bytes == sizeof(double) ? MapData::kAlways : MapData::kAuto;
  const TrainAndTest sets = FromFiles(kind, state.range(1) == 1 ? mapped : MapData::kNever);
  auto loader = Loader::Create({.dataset = &sets.train,
                                .sampler = {.sample_count = sets.train.count, .global_batch = kBatch},
                                .normalization = NormalizationOf(sets.train),
                                .prefetch_depth = 0,
                                .end_step = int64_t{1} << 40});
  CHECK_OK(loader.status());
  for (int64_t step = 0; step < kind.count / kBatch; ++step) CHECK_OK((*loader)->Next());  // touches every page
  for (auto _ : state) benchmark::DoNotOptimize((*loader)->Next().value()->images.data());
  CountSamples(state, sets.train);
}
BENCHMARK(BM_LoaderOfFile)->ArgNames({"kind", "mapped"})->ArgsProduct({{0, 1, 2, 3, 4, 5, 6}, {0, 1}})->UseRealTime();

// The limit: copies the bytes of a float32 batch from memory into one buffer, again and again.
void RunMemcpy(benchmark::State& state, const Dataset& dataset) {
  const int64_t bytes = kBatch * dataset.image_bytes() * 4;
  std::vector<uint8_t> batch(static_cast<size_t>(bytes));
  int64_t from = 0;
  for (auto _ : state) {
    std::memcpy(batch.data(), dataset.images.data() + from, batch.size());
    benchmark::DoNotOptimize(batch.data());
    benchmark::ClobberMemory();
    from += bytes;
    if (from + bytes > std::ssize(dataset.images)) from = 0;
  }
  CountSamples(state, dataset);
}
void BM_MemcpyOfMnistBatch(benchmark::State& state) { RunMemcpy(state, Mnist()); }
void BM_MemcpyOfCifarBatch(benchmark::State& state) { RunMemcpy(state, Cifar()); }
BENCHMARK(BM_MemcpyOfMnistBatch);
BENCHMARK(BM_MemcpyOfCifarBatch);

void BM_Normalize(benchmark::State& state) {
  if (state.range(0) > static_cast<int64_t>(BestInstructionSet())) return state.SkipWithError("not on this CPU");
  const Normalizer normalizer(NormalizationOf(Cifar()), static_cast<InstructionSet>(state.range(0)));
  std::vector<float> out(static_cast<size_t>(Cifar().image_bytes()));
  for (auto _ : state) {
    normalizer.Run(Cifar().images.data(), Cifar().image_bytes(), out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Normalize)->ArgName("isa")->DenseRange(0, kInstructionSetCount - 1);

// The alternative to Normalizer's arithmetic: a table of 256 values for each channel.
void BM_NormalizeByTable(benchmark::State& state) {
  std::vector<float> table(3 * 256);
  // Only the loads are measured, so any values do.
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
  const uint8_t* pixels = Cifar().images.data();
  std::vector<float> out(static_cast<size_t>(Cifar().image_bytes()));
  for (auto _ : state) {
    for (size_t i = 0; i < out.size(); i += 3) {
      out[i] = table[pixels[i]];
      out[i + 1] = table[256 + pixels[i + 1]];
      out[i + 2] = table[512 + pixels[i + 2]];
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_NormalizeByTable);

void BM_CropFlip(benchmark::State& state) {
  const CropFlip crop{
      .top = state.range(0), .left = state.range(1), .flip = static_cast<CropFlip::Flip>(state.range(2))};
  const ImageShape shape{.height = 32, .width = 32, .channels = 3};
  std::vector<uint8_t> out(static_cast<size_t>(Cifar().image_bytes()));
  for (auto _ : state) {
    ApplyCropFlip(crop, shape, Cifar().images.data(), out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}
// 4, the padding, leaves an image in its place. With 2, two rows or columns of it are padding.
BENCHMARK(BM_CropFlip)->ArgNames({"top", "left", "flip"})->ArgsProduct({{2, 4}, {2, 4}, {0, 1}});

void BM_PixelSums(benchmark::State& state) {
  const Dataset& dataset = state.range(0) == 1 ? Mnist() : Cifar();
  for (auto _ : state) benchmark::DoNotOptimize(PixelSums(dataset, 0, dataset.count));
  state.SetBytesProcessed(state.iterations() * std::ssize(dataset.images));
}
BENCHMARK(BM_PixelSums)->ArgName("channels")->Arg(1)->Arg(3)->Unit(benchmark::kMillisecond);

void BM_Permutation(benchmark::State& state) {
  int64_t epoch = 0;
  for (auto _ : state) benchmark::DoNotOptimize(Sampler::Permutation(60000, 0, epoch++).data());
  state.SetItemsProcessed(state.iterations() * 60000);
}
BENCHMARK(BM_Permutation)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace starring
