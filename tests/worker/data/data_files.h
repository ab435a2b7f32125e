// Small data files for tests: bytes, gzip, IDX, CIFAR records.
#ifndef STARRING_TESTS_WORKER_DATA_DATA_FILES_H_
#define STARRING_TESTS_WORKER_DATA_DATA_FILES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/dataset.h"

namespace starring {

// Makes an empty folder for the running test, and returns its path.
std::string MakeFolder(std::string_view name);

// Writes `content` to folder/name, creates missing folders, and returns the path.
std::string WriteFile(const std::string& folder, std::string_view name, std::string_view content);

// `content` as one gzip member.
std::string Gzip(std::string_view content);

// An IDX file: the magic number and the sizes, big-endian, then `body`.
std::string Idx(uint32_t magic, const std::vector<uint32_t>& sizes, std::string_view body);

// `count` images of rows x columns with pixels 0, 1, 2, ... mod 251 from `first`, and labels 0, 1, ... mod 10.
std::string IdxImages(uint32_t count, uint32_t rows, uint32_t columns, int first = 0);
std::string IdxLabels(uint32_t count);

// `count` records: label i mod 10 for record i from `first`; pixel p of plane c is (i + p + 80 c) mod 256.
std::string CifarRecords(int64_t count, int64_t first = 0);

// The values of all samples, wherever the set has them.
std::vector<uint8_t> ImagesOf(const Dataset& dataset);
std::string TextOf(const Dataset& dataset);         // the same bytes
uint32_t CrcOf(const std::vector<uint8_t>& bytes);  // CRC-32C, by a table

// An array of NumPy, version 1, with this type ("<i4"), this shape ("(3, 2)") and these elements.
std::string Npy(std::string_view type, std::string_view shape, std::string_view elements);

struct ZipMember {
  std::string name;
  std::string content;
  bool deflated = false;
  bool zip64 = false;  // its sizes are in the zip64 field
};
std::string Zip(const std::vector<ZipMember>& members);

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_DATA_DATA_FILES_H_
