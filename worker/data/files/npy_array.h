// The header of an array in NumPy's format (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html),
// versions 1 to 3.
//
// The header is the text of a Python dictionary. It is read by a grammar of its own, which knows three keys, two
// strings and a tuple of numbers, and is never evaluated.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_DATA_FILES_NPY_ARRAY_H_
#define STARRING_WORKER_DATA_FILES_NPY_ARRAY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/files/byte_stream.h"

namespace starring {

struct NpyArray {
  char kind = 'u';  // b: bool, u: unsigned, i: signed, f: floating-point; little-endian
  int element_bytes = 1;
  std::vector<int64_t> shape;  // row by row (C order); (n) for labels, the number of samples first

  int64_t element_count() const;
  std::string type() const;  // as NumPy names it: "uint8"
};

// Reads `stream` up to the first element. DataLoss names the file, what was expected and what was found. It refuses
//   - another magic number or version, and a header that ends early, is longer than kNpyHeaderBytesMax
//     (common/base/limits.h), or is no such dictionary;
//   - big-endian numbers, Fortran's order, and elements of any other kind, such as objects, which are Python's pickles;
//   - an array without dimensions, with a dimension of 0, or with more than kNpyDimensionsMax of them;
//   - more elements than the file can hold.
absl::StatusOr<NpyArray> ReadNpyHeader(ByteStream& stream);

// The dictionary alone; `path` is for messages. DataLoss as above, but for what depends on the file.
absl::StatusOr<NpyArray> ParseNpyHeader(absl::string_view text, absl::string_view path);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_NPY_ARRAY_H_
