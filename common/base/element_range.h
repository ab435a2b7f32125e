// A part of a vector.
#ifndef STARRING_COMMON_BASE_ELEMENT_RANGE_H_
#define STARRING_COMMON_BASE_ELEMENT_RANGE_H_

#include <cstdint>

namespace starring {

// Elements [begin, end) of the parameter vector, or of another one that the user of the range names.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

}  // namespace starring

#endif  // STARRING_COMMON_BASE_ELEMENT_RANGE_H_
