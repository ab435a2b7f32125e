// Names the places inside its target that an input reaches, in words. A parser that has become stricter may refuse an
// input at its first field, and the input then tests nothing: tests/fuzz/reached.txt says what the inputs of a corpus
// must reach, and replay_main.cc compares.
//
// Thread safety: one thread.
#ifndef STARRING_TESTS_FUZZ_REACHED_H_
#define STARRING_TESTS_FUZZ_REACHED_H_

#include <string>
#include <vector>

namespace starring {

// Where the words of the running input go; null, as in libFuzzer's binaries: nowhere.
inline std::vector<std::string>*& ReachedWords() {
  static std::vector<std::string>* words = nullptr;
  return words;
}

inline void Reached(const std::string& what) {
  if (ReachedWords() != nullptr) ReachedWords()->push_back(what);
}

}  // namespace starring

#endif  // STARRING_TESTS_FUZZ_REACHED_H_
