#include "tests/worker/data/data_files.h"

#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <span>

#include "common/base/check.h"
#include "common/checkpoint/crc32c.h"
#include "gtest/gtest.h"

namespace starring {

namespace fs = std::filesystem;

std::string MakeFolder(std::string_view name) {
  const fs::path folder = fs::path(::testing::TempDir()) / name;
  fs::remove_all(folder);
  CHECK(fs::create_directories(folder));
  return folder.string();
}

std::string WriteFile(const std::string& folder, std::string_view name, std::string_view content) {
  const fs::path path = fs::path(folder) / name;
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  CHECK(file.good());
  return path.string();
}

std::string Gzip(std::string_view content) {
  z_stream stream{};
  CHECK_EQ(deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string zipped(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(zipped.data());
  stream.avail_out = static_cast<uInt>(zipped.size());
  CHECK_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  zipped.resize(stream.total_out);
  deflateEnd(&stream);
  return zipped;
}

std::string Idx(uint32_t magic, const std::vector<uint32_t>& sizes, std::string_view body) {
  std::string bytes;
  const auto append = [&bytes](uint32_t word) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(word >> shift));
  };
  append(magic);
  for (const uint32_t size : sizes) append(size);
  return bytes.append(body);
}

std::string IdxImages(uint32_t count, uint32_t rows, uint32_t columns, int first) {
  std::string pixels;
  for (uint32_t i = 0; i < count * rows * columns; ++i) pixels.push_back(static_cast<char>((first + i) % 251));
  return Idx(0x803, {count, rows, columns}, pixels);
}

std::string IdxLabels(uint32_t count) {
  std::string labels;
  for (uint32_t i = 0; i < count; ++i) labels.push_back(static_cast<char>(i % 10));
  return Idx(0x801, {count}, labels);
}

std::string CifarRecords(int64_t count, int64_t first) {
  std::string records;
  for (int64_t i = first; i < first + count; ++i) {
    records.push_back(static_cast<char>(i % 10));
    for (int64_t channel = 0; channel < 3; ++channel) {
      for (int64_t p = 0; p < 1024; ++p) records.push_back(static_cast<char>(i + p + 80 * channel));
    }
  }
  return records;
}

std::string Npy(std::string_view type, std::string_view shape, std::string_view elements) {
  std::string header = "{'descr': '";
  header.append(type).append("', 'fortran_order': False, 'shape': ").append(shape).append(", }\n");
  std::string file("\x93NUMPY\1\0", 8);
  file += static_cast<char>(header.size());
  file += static_cast<char>(header.size() >> 8);
  return file.append(header).append(elements);
}

std::string Zip(const std::vector<ZipMember>& members) {
  std::string file, directory;
  const auto append = [](std::string& to, uint64_t number, int bytes) {
    for (; bytes > 0; --bytes, number >>= 8) to.push_back(static_cast<char>(number));
  };
  for (const ZipMember& member : members) {
    // Gzip's header has 10 bytes, its end 8; between them is deflate's data.
    const std::string zipped = Gzip(member.content);
    const std::string data = member.deflated ? zipped.substr(10, zipped.size() - 18) : member.content;
    const auto crc = static_cast<uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(member.content.data()), static_cast<uInt>(member.content.size())));
    const uint64_t header = file.size();
    const int method = member.deflated ? 8 : 0;
    append(file, 0x04034b50, 4);
    append(file, 20, 2);
    append(file, 0, 2);
    append(file, static_cast<uint64_t>(method), 2);
    append(file, 0, 4);
    append(file, crc, 4);
    append(file, data.size(), 4);
    append(file, member.content.size(), 4);
    append(file, member.name.size(), 2);
    append(file, 3, 2);
    file.append(member.name).append("abc").append(data);

    std::string extra;
    if (member.zip64) {
      append(extra, 1, 2);
      append(extra, 24, 2);
      append(extra, member.content.size(), 8);
      append(extra, data.size(), 8);
      append(extra, header, 8);
    }
    constexpr uint64_t kElsewhere = 0xffffffff;
    append(directory, 0x02014b50, 4);
    append(directory, 20, 2);
    append(directory, 20, 2);
    append(directory, 0, 2);
    append(directory, static_cast<uint64_t>(method), 2);
    append(directory, 0, 4);
    append(directory, crc, 4);
    append(directory, member.zip64 ? kElsewhere : data.size(), 4);
    append(directory, member.zip64 ? kElsewhere : member.content.size(), 4);
    append(directory, member.name.size(), 2);
    append(directory, extra.size(), 2);
    append(directory, 0, 10);
    append(directory, member.zip64 ? kElsewhere : header, 4);
    directory.append(member.name).append(extra);
  }
  const uint64_t begin = file.size();
  file.append(directory);
  append(file, 0x06054b50, 4);
  append(file, 0, 4);
  append(file, members.size(), 2);
  append(file, members.size(), 2);
  append(file, directory.size(), 4);
  append(file, begin, 4);
  append(file, 2, 2);
  return file.append("hi");
}

std::vector<uint8_t> ImagesOf(const Dataset& dataset) {
  std::vector<uint8_t> all;
  dataset.ForEachBlock(0, dataset.count, 3, [&all](std::span<const uint8_t> values, int64_t) {
    all.insert(all.end(), values.begin(), values.end());
  });
  return all;
}

std::string TextOf(const Dataset& dataset) {
  const std::vector<uint8_t> images = ImagesOf(dataset);
  return {images.begin(), images.end()};
}

uint32_t CrcOf(const std::vector<uint8_t>& bytes) { return ExtendCrc32cByTable(0, std::as_bytes(std::span(bytes))); }

}  // namespace starring
